//! The macro for closed sets of strings in a spec.

/// An enum over the strings of a schema's `enum`.
///
/// Deserialisation is lenient: the schema has already rejected unknown values, so one can only come from a newer schema
/// or from an object stored before the rule existed, and an object that cannot be decoded would stop a whole watch. An
/// unknown value decodes as the default, which the contract prescribes for empty and unknown values.
macro_rules! string_enum {
    ($(#[$meta:meta])* $name:ident { $(#[$default_meta:meta])* $default:ident $(, $(#[$variant_meta:meta])* $variant:ident)* $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name {
            $(#[$default_meta])*
            #[default]
            $default,
            $($(#[$variant_meta])* $variant,)*
        }

        impl $name {
            /// Every value of the schema, default first.
            pub const ALL: &'static [Self] = &[Self::$default $(, Self::$variant)*];

            /// The wire value.
            pub const fn as_str(self) -> &'static str {
                match self {
                    Self::$default => stringify!($default),
                    $(Self::$variant => stringify!($variant),)*
                }
            }

            /// Parses the wire value; unknown values give the default.
            pub fn from_wire(value: &str) -> Self {
                match value {
                    $(stringify!($variant) => Self::$variant,)*
                    _ => Self::$default,
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let value = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                Ok(Self::from_wire(&value))
            }
        }
    };
}

pub(crate) use string_enum;
