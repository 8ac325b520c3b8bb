//! The daemon in each sandbox: processes, terminals, files, watches. One small static binary for any image.
