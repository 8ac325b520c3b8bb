//! The front door of the data plane: authenticate, resolve, authorise, wake, proxy.
