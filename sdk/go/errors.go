package sandbox

import (
	"errors"
	"fmt"
)

// Errors for errors.Is. Every message says what was tried and what to do next.
var (
	// ErrNotFound: no sandbox, claim, snapshot, file or process has that name.
	ErrNotFound = errors.New("not found")
	// ErrNoSource: neither a warm pool nor a template has that name.
	ErrNoSource = errors.New("neither a warm pool nor a template")
	// ErrAlreadyExists: an object of that name already exists.
	ErrAlreadyExists = errors.New("already exists")
	// ErrTimeout: the operation exceeded its timeout.
	ErrTimeout = errors.New("timeout")
	// ErrClaimFailed: the claim can never become ready; the message contains the reason of its condition.
	ErrClaimFailed = errors.New("claim failed")
	// ErrSandboxDeleted: the object was deleted while waiting for it.
	ErrSandboxDeleted = errors.New("deleted meanwhile")
	// ErrNotReady: the sandbox exists but does not accept requests; it is starting or suspended.
	ErrNotReady = errors.New("not ready")
	// ErrSnapshotFailed: the snapshot cannot be taken; the message contains the reason.
	ErrSnapshotFailed = errors.New("snapshot failed")
	// ErrNoCluster: no cluster is configured and no engine runs on this machine.
	ErrNoCluster = errors.New("no cluster")
	// ErrPortForward: the tunnel through the API could not be opened.
	ErrPortForward = errors.New("port-forward failed")
	// ErrDisconnected: the connection could not be opened or resumed; no operation was repeated.
	ErrDisconnected = errors.New("disconnected")
	// ErrOutcomeUnknown: the request was sent but no response arrived. It was not repeated.
	ErrOutcomeUnknown = errors.New("outcome unknown")
	// ErrTooLarge: the content is larger than the limit for reading it into memory; stream it instead.
	ErrTooLarge = errors.New("too large")
	// ErrUnsupportedByRuntime: the sandbox's runtime does not support the operation.
	ErrUnsupportedByRuntime = errors.New("unsupported by the sandbox's runtime")
)

// HTTPError is a response with status 400 or above, from the sandbox or from the router in front of it.
type HTTPError struct {
	Operation string
	Status    int
	// Code is the machine-readable reason, where the sandbox gave one.
	Code    string
	Message string
}

func (e *HTTPError) Error() string {
	if e.Code != "" && e.Code == e.upper() {
		return fmt.Sprintf("%s: answered %d: %s: %s", e.Operation, e.Status, e.Code, e.Message)
	}
	return fmt.Sprintf("%s: answered %d: %s", e.Operation, e.Status, e.Message)
}

func (e *HTTPError) upper() string {
	for _, letter := range e.Code {
		if letter >= 'a' && letter <= 'z' {
			return ""
		}
	}
	return e.Code
}

// Is maps statuses to the errors of this package, for errors.Is.
func (e *HTTPError) Is(target error) bool {
	switch target {
	case ErrNotFound:
		return e.Code == "notFound" || (e.Code == "" && e.Status == 404)
	case ErrOutcomeUnknown:
		return e.Code == "outcomeUnknown"
	case ErrTooLarge:
		return e.Status == 413
	}
	return false
}
