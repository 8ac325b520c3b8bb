package sandbox

import (
	"errors"
	"fmt"
)

// What can go wrong, for errors.Is. Every error says what was tried and what to do next.
var (
	// ErrNotFound: no sandbox, claim, file or process of that name.
	ErrNotFound = errors.New("not found")
	// ErrNoSource: the name is neither a warm pool's nor a template's.
	ErrNoSource = errors.New("neither a warm pool nor a template")
	// ErrAlreadyExists: something of that name is there.
	ErrAlreadyExists = errors.New("already exists")
	// ErrTimeout: it took longer than allowed.
	ErrTimeout = errors.New("timeout")
	// ErrClaimFailed: the claim can never become ready; its condition says why.
	ErrClaimFailed = errors.New("claim failed")
	// ErrSandboxDeleted: it was deleted while it was being waited for.
	ErrSandboxDeleted = errors.New("deleted meanwhile")
	// ErrNotReady: it exists and cannot be talked to; it is starting or suspended.
	ErrNotReady = errors.New("not ready")
	// ErrNoCluster: no cluster is named and no engine runs on this machine.
	ErrNoCluster = errors.New("no cluster")
	// ErrPortForward: the tunnel through the API could not be opened.
	ErrPortForward = errors.New("port-forward failed")
	// ErrDisconnected: the connection could not be made or taken up again; nothing was done twice.
	ErrDisconnected = errors.New("disconnected")
	// ErrOutcomeUnknown: the request was sent and no answer came. It was not repeated.
	ErrOutcomeUnknown = errors.New("outcome unknown")
	// ErrTooLarge: larger than may be kept in memory; stream it.
	ErrTooLarge = errors.New("too large")
	// ErrUnsupportedByRuntime: the sandbox's runtime does not know the operation.
	ErrUnsupportedByRuntime = errors.New("unsupported by the sandbox's runtime")
)

// HTTPError is an answer from 400 on, of the sandbox or of the router in front of it.
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

// Is lets errors.Is find what a status means.
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
