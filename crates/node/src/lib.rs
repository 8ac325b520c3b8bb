//! The embedded node: Pods in, isolated process trees and Pod status out.
