//! The four reconcilers: observe, plan (pure), apply; leader election, metrics, conversion webhook.
