//! The protobuf wire format: numbered fields of four wire types.

use super::DecodeError;

/// The encoded value of one field.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Field<'a> {
    Varint(u64),
    Fixed64(u64),
    Fixed32(u32),
    Bytes(&'a [u8]),
}

/// The fields of a message, in order. The iterator ends after an error.
pub(super) fn fields(message: &[u8]) -> impl Iterator<Item = Result<(u32, Field<'_>), DecodeError>> {
    let mut rest = message;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let field = next_field(&mut rest);
        if field.is_err() {
            rest = &[];
        }
        Some(field)
    })
}

fn next_field<'a>(rest: &mut &'a [u8]) -> Result<(u32, Field<'a>), DecodeError> {
    let key = varint(rest)?;
    let number = u32::try_from(key >> 3).map_err(|_| DecodeError::Varint)?;
    let field = match key & 7 {
        0 => Field::Varint(varint(rest)?),
        1 => Field::Fixed64(u64::from_le_bytes(fixed(rest)?)),
        2 => {
            let length = usize::try_from(varint(rest)?).map_err(|_| DecodeError::Truncated)?;
            if length > rest.len() {
                return Err(DecodeError::Truncated);
            }
            let (bytes, after) = rest.split_at(length);
            *rest = after;
            Field::Bytes(bytes)
        }
        5 => Field::Fixed32(u32::from_le_bytes(fixed(rest)?)),
        _ => return Err(DecodeError::WireType(number)),
    };
    Ok((number, field))
}

pub(super) fn varint(rest: &mut &[u8]) -> Result<u64, DecodeError> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (byte, after) = rest.split_first().ok_or(DecodeError::Truncated)?;
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(DecodeError::Varint)
}

fn fixed<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], DecodeError> {
    let (bytes, after) = rest.split_first_chunk::<N>().ok_or(DecodeError::Truncated)?;
    *rest = after;
    Ok(*bytes)
}

pub(super) fn text(bytes: &[u8]) -> Result<String, DecodeError> {
    std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| DecodeError::Utf8)
}
