package sandbox

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// executionLimit is the maximum size of all events of a run that RunCode reads.
const executionLimit = 256 << 20

// CodeExecution is what code printed and showed, and the exception that ended it.
type CodeExecution struct {
	Stdout, Stderr string
	// Results are everything that was displayed, and the value of the last expression.
	Results []CodeResult
	// Error is the exception that ended the code, or nil.
	Error *CodeError
	// ExecutionCount is how many runs the context has begun.
	ExecutionCount int
}

// Text returns the value of the last expression as text, or "".
func (e *CodeExecution) Text() string {
	for _, result := range e.Results {
		if result.IsMainResult {
			return result.Text()
		}
	}
	return ""
}

// CodeResult is what code showed, in several formats.
type CodeResult struct {
	// IsMainResult tells the value of the last expression from what was displayed.
	IsMainResult bool
	// Formats has the same by format: text, html, png (base64) and others.
	Formats map[string]any
}

// Text returns the result as plain text, or "".
func (r *CodeResult) Text() string {
	text, _ := r.Formats["text"].(string)
	return text
}

// CodeError is an exception of code.
type CodeError struct {
	Name      string `json:"name"`
	Value     string `json:"value"`
	Traceback string `json:"traceback"`
}

// CodeContext is variables and a working directory for code.
type CodeContext struct {
	ID       string `json:"id"`
	Language string `json:"language"`
	Cwd      string `json:"cwd"`
}

// CodeOption configures a run of code.
type CodeOption func(*codeRequest)

type codeRequest struct {
	Code    string            `json:"code"`
	Context string            `json:"context,omitempty"`
	Env     map[string]string `json:"env,omitempty"`

	limit time.Duration
}

// InCodeContext runs the code in the context with that id, instead of the default one.
func InCodeContext(id string) CodeOption { return func(r *codeRequest) { r.Context = id } }

// CodeEnv sets environment variables for this run only.
func CodeEnv(env map[string]string) CodeOption { return func(r *codeRequest) { r.Env = env } }

// CodeLimit sets the timeout, after which the code is interrupted and the call fails with ErrTimeout; the variables stay.
func CodeLimit(time time.Duration) CodeOption { return func(r *codeRequest) { r.limit = time } }

// RunCode runs Python code whose variables stay for the next run in the same context. An exception of the code is in the result's Error.
// When ctx ends, the code is interrupted.
func (s *Sandbox) RunCode(ctx context.Context, code string, configure ...CodeOption) (*CodeExecution, error) {
	wanted := &codeRequest{Code: code}
	for _, option := range configure {
		option(wanted)
	}
	if wanted.limit > 0 {
		limited, cancel := context.WithTimeout(ctx, wanted.limit)
		defer cancel()
		ctx = limited
	}
	body, err := json.Marshal(wanted)
	if err != nil {
		return nil, err
	}
	headers := http.Header{"Content-Type": {"application/json"}}
	answer, err := s.transport.send(ctx, call{method: "POST", path: prefix + "/code", operation: "run code", headers: headers, body: body})
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	content := &io.LimitedReader{R: answer.Body, N: executionLimit}
	execution, err := readExecution(newLines(content))
	switch {
	case err == nil:
		return execution, nil
	case content.N == 0:
		return nil, fmt.Errorf("the code's output: %w: more than %d bytes", ErrTooLarge, executionLimit)
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return nil, fmt.Errorf("run code in %q: %w", s.Name, ErrTimeout)
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
	return nil, fmt.Errorf("run code in %q: %w: %w", s.Name, ErrOutcomeUnknown, err)
}

// readExecution reads the events of a run to the last one. Events of later versions are left out.
func readExecution(lines *bufio.Reader) (*CodeExecution, error) {
	execution := &CodeExecution{}
	var stdout, stderr strings.Builder
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return nil, fmt.Errorf("the stream ended before the code did: %w", err)
		}
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		var event map[string]any
		if err := json.Unmarshal(line, &event); err != nil {
			return nil, err
		}
		text, _ := event["text"].(string)
		switch event["type"] {
		case "stdout":
			stdout.WriteString(text)
		case "stderr":
			stderr.WriteString(text)
		case "number_of_executions":
			count, _ := event["execution_count"].(float64)
			execution.ExecutionCount = int(count)
		case "result":
			main, _ := event["is_main_result"].(bool)
			delete(event, "type")
			delete(event, "is_main_result")
			execution.Results = append(execution.Results, CodeResult{IsMainResult: main, Formats: event})
		case "error":
			execution.Error = &CodeError{}
			if err := json.Unmarshal(line, execution.Error); err != nil {
				return nil, err
			}
		case "end_of_execution":
			execution.Stdout, execution.Stderr = stdout.String(), stderr.String()
			return execution, nil
		}
	}
}

// CreateCodeContext makes a context for RunCode, with variables and a working directory of its own; "" is the sandbox's.
func (s *Sandbox) CreateCodeContext(ctx context.Context, cwd string) (*CodeContext, error) {
	wanted := map[string]string{}
	if cwd != "" {
		wanted["cwd"] = cwd
	}
	body, err := json.Marshal(wanted)
	if err != nil {
		return nil, err
	}
	made := &CodeContext{}
	headers := http.Header{"Content-Type": {"application/json"}}
	request := call{method: "POST", path: prefix + "/code/contexts", operation: "make a code context", headers: headers, body: body}
	if err := s.transport.fetch(ctx, request, made); err != nil {
		return nil, err
	}
	return made, nil
}

// RemoveCodeContext removes a context and ends its process.
func (s *Sandbox) RemoveCodeContext(ctx context.Context, id string) error {
	path := prefix + "/code/contexts?context=" + url.QueryEscape(id)
	return s.transport.fetch(ctx, call{method: "DELETE", path: path, operation: "remove a code context"}, nil)
}
