package sandbox

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"time"
)

const (
	// outputLimit is the maximum number of bytes of each stream that Run returns.
	outputLimit = 64 << 20
	repetitions = 30
)

// Result is a finished command.
type Result struct {
	// ExitCode is 128 + N when signal N ended the command, 124 when it timed out.
	ExitCode       int
	Signal         *int
	Stdout, Stderr []byte
	TimedOut       bool
}

// Event is one event of a command.
type Event struct {
	// Kind is started, stdout, stderr, skipped or exit.
	Kind     string
	ID, PID  int
	Offset   int64
	Data     []byte
	Skipped  int64
	ExitCode int
	Signal   *int
	TimedOut bool
}

// Run runs a shell command and waits for its end. Without an idempotency key a lost connection gives ErrOutcomeUnknown, and the sandbox
// ends the command; with one the result is fetched over a new connection, and the command runs once.
func (s *Sandbox) Run(ctx context.Context, text string, configure ...RunOption) (*Result, error) {
	return s.run(ctx, newCommand(text, nil, configure))
}

// RunArgs runs a program without a shell.
func (s *Sandbox) RunArgs(ctx context.Context, argv []string, configure ...RunOption) (*Result, error) {
	return s.run(ctx, newCommand("", argv, configure))
}

func newCommand(text string, argv []string, configure []RunOption) *command {
	c := &command{Command: text, Argv: argv}
	for _, option := range configure {
		option(c)
	}
	return c
}

func (s *Sandbox) run(ctx context.Context, c *command) (*Result, error) {
	if c.key != "" {
		wanted := *c
		wanted.Base64 = true
		content, err := s.keyed(ctx, &wanted, c.key, "exec", "run a command")
		if err != nil {
			return nil, err
		}
		return toResult(content)
	}
	result := &Result{}
	ended := false
	events, err := s.stream(ctx, c)
	if err != nil {
		return nil, err
	}
	defer events.Close()
	for event, err := range events.All() {
		if err != nil {
			return nil, err
		}
		switch event.Kind {
		case "stdout":
			result.Stdout = append(result.Stdout, event.Data...)
		case "stderr":
			result.Stderr = append(result.Stderr, event.Data...)
		case "exit":
			result.ExitCode, result.Signal, result.TimedOut, ended = event.ExitCode, event.Signal, event.TimedOut, true
		}
		if max(len(result.Stdout), len(result.Stderr)) > outputLimit {
			return nil, fmt.Errorf("the command's output: %w: more than %d bytes; stream it instead", ErrTooLarge, outputLimit)
		}
	}
	if !ended {
		return nil, fmt.Errorf("run a command in %q: %w: the stream ended before the command did", s.Name, ErrOutcomeUnknown)
	}
	return result, nil
}

func toResult(content []byte) (*Result, error) {
	var answer execResult
	if err := json.Unmarshal(content, &answer); err != nil {
		return nil, fmt.Errorf("run a command: %w: %v", ErrUnsupportedByRuntime, err)
	}
	result := &Result{ExitCode: answer.ExitCode, Signal: answer.Signal, TimedOut: answer.TimedOut}
	var err error
	if result.Stdout, err = base64.StdEncoding.DecodeString(answer.Stdout); err != nil {
		return nil, err
	}
	if result.Stderr, err = base64.StdEncoding.DecodeString(answer.Stderr); err != nil {
		return nil, err
	}
	if answer.StdoutBytes > len(result.Stdout) || answer.StderrBytes > len(result.Stderr) {
		return nil, fmt.Errorf("the command's output: %w; stream it instead", ErrTooLarge)
	}
	return result, nil
}

// Stream runs a shell command and returns its events as they happen. Closing the stream ends the command.
func (s *Sandbox) Stream(ctx context.Context, text string, configure ...RunOption) (*Events, error) {
	return s.stream(ctx, newCommand(text, nil, configure))
}

func (s *Sandbox) stream(ctx context.Context, c *command) (*Events, error) {
	body, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	headers := http.Header{"Accept": {"application/x-ndjson"}, "Content-Type": {"application/json"}}
	answer, err := s.transport.send(ctx, call{method: "POST", path: prefix + "/exec", operation: "run a command", headers: headers, body: body})
	if err != nil {
		return nil, err
	}
	return &Events{ctx: ctx, operation: "run a command in " + s.Name, broken: ErrOutcomeUnknown, body: answer.Body, lines: newLines(answer.Body)}, nil
}

// keyed sends a request with an idempotency key until it gets a response. After a restart of the daemon it reads the new boot id only for a key
// that was never sent.
func (s *Sandbox) keyed(ctx context.Context, c *command, key, endpoint, operation string) ([]byte, error) {
	boot, fresh := c.bootID, c.key == ""
	var err error
	if boot == "" {
		if boot, err = s.bootID(ctx); err != nil {
			return nil, err
		}
	}
	body, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	sentBefore := false
	for left := repetitions; ; {
		headers := http.Header{"Content-Type": {"application/json"}, "Idempotency-Key": {key}, "Sandbox-Boot-Id": {boot}}
		answer, err := s.transport.send(ctx, call{method: "POST", path: prefix + "/" + endpoint, operation: operation, headers: headers, body: body})
		if err == nil {
			content, err := readLimited(answer, 256<<20)
			answer.Body.Close()
			if err == nil {
				return content, nil
			}
		}
		var refused *HTTPError
		switch {
		case errors.As(err, &refused) && refused.Code == "outcomeUnknown":
			s.forgetBoot()
			if sentBefore || !fresh {
				return nil, fmt.Errorf("%s in %q: %w", operation, s.Name, err)
			}
			if boot, err = s.bootID(ctx); err != nil {
				return nil, err
			}
			sentBefore = true
			continue
		case errors.As(err, &refused) && (refused.Status < 502 || refused.Status > 504):
			return nil, err
		case ctx.Err() != nil, left == 0:
			return nil, err
		}
		sentBefore = true
		left--
		select {
		case <-ctx.Done():
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// Start starts a shell command that keeps running when this program ends.
func (s *Sandbox) Start(ctx context.Context, text string, configure ...RunOption) (*Process, error) {
	c := newCommand(text, nil, configure)
	key := c.key
	if key == "" {
		key = randomHex(16)
	}
	content, err := s.keyed(ctx, c, key, "processes", "start a process")
	if err != nil {
		return nil, err
	}
	var info ProcessInfo
	if err := json.Unmarshal(content, &info); err != nil {
		return nil, err
	}
	return &Process{sandbox: s, ID: info.ID, PID: info.PID}, nil
}

// Process returns a process that was started earlier, by this or another program.
func (s *Sandbox) Process(ctx context.Context, id int) (*Process, error) {
	process := &Process{sandbox: s, ID: id}
	info, err := process.Info(ctx)
	if err != nil {
		return nil, err
	}
	process.PID = info.PID
	return process, nil
}

// Processes returns all running processes, and those that ended recently.
func (s *Sandbox) Processes(ctx context.Context) ([]ProcessInfo, error) {
	var list struct{ Processes []ProcessInfo }
	err := s.transport.fetch(ctx, call{method: "GET", path: prefix + "/processes", operation: "list processes", repeat: true}, &list)
	return list.Processes, err
}

// Events is a stream of events.
type Events struct {
	ctx       context.Context
	operation string
	broken    error
	body      io.Closer
	lines     *bufio.Reader
	// again reopens the stream at an offset, where that is supported.
	again  func(offset int64) (io.ReadCloser, error)
	offset int64
	begun  bool
	ended  bool
}

func newLines(body io.Reader) *bufio.Reader { return bufio.NewReaderSize(body, 64*1024) }

// Close ends the stream, and a command that was started with it.
func (e *Events) Close() error {
	e.ended = true
	if e.body == nil {
		return nil
	}
	return e.body.Close()
}

// All yields the events until the end. An error is the last value it yields.
func (e *Events) All() iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		for !e.ended {
			event, err := e.next()
			if errors.Is(err, io.EOF) {
				return
			}
			if !yield(event, err) || err != nil {
				return
			}
		}
	}
}

func (e *Events) next() (Event, error) {
	for left := 20; ; {
		line, err := e.lines.ReadBytes('\n')
		if err != nil {
			if e.again == nil || left == 0 || e.ctx.Err() != nil {
				e.ended = true
				if e.ctx.Err() != nil {
					return Event{}, e.ctx.Err()
				}
				if errors.Is(err, io.EOF) && len(line) == 0 && e.again == nil {
					return Event{}, io.EOF
				}
				return Event{}, fmt.Errorf("%s: %w: %w", e.operation, e.broken, err)
			}
			left--
			if err := e.reopen(); err != nil {
				return Event{}, err
			}
			continue
		}
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		event, skip, err := e.decode(line)
		if err != nil || !skip {
			return event, err
		}
	}
}

func (e *Events) reopen() error {
	e.body.Close()
	time.Sleep(200 * time.Millisecond)
	body, err := e.again(e.offset)
	if err != nil {
		e.ended = true
		return err
	}
	e.body, e.lines = body, newLines(body)
	return nil
}

func (e *Events) decode(line []byte) (Event, bool, error) {
	var wire wireEvent
	if err := json.Unmarshal(line, &wire); err != nil {
		return Event{}, false, fmt.Errorf("%s: %w", e.operation, err)
	}
	event := Event{
		Kind: wire.Type, ID: wire.ID, PID: wire.PID, Offset: wire.Offset, Skipped: wire.Bytes,
		ExitCode: wire.ExitCode, Signal: wire.Signal, TimedOut: wire.TimedOut,
	}
	switch wire.Type {
	case "error":
		return event, false, &HTTPError{Operation: e.operation, Code: wire.Code, Message: wire.Message, Status: 500}
	case "started":
		// Repeated after the stream was reopened; the caller has already seen it.
		again := e.begun
		e.begun = true
		return event, again, nil
	case "stdout", "stderr":
		data, err := wire.data()
		if err != nil {
			return event, false, err
		}
		event.Data = data
		e.offset = wire.Offset + int64(len(data))
	case "skipped":
		e.offset = wire.Offset + wire.Bytes
	case "exit":
		e.ended = true
	}
	return event, false, nil
}

// Process is a background process. It keeps running when this program ends; its ID identifies it.
type Process struct {
	ID, PID int
	sandbox *Sandbox
}

func (p *Process) call(method, endpoint, operation string) call {
	return call{method: method, path: fmt.Sprintf("%s/processes/%d%s", prefix, p.ID, endpoint), operation: operation, repeat: method != "POST"}
}

// Info returns the current state of the process.
func (p *Process) Info(ctx context.Context) (*ProcessInfo, error) {
	info := &ProcessInfo{}
	return info, p.sandbox.transport.fetch(ctx, p.call("GET", "", "look at a process"), info)
}

// Wait waits for the end of the process.
func (p *Process) Wait(ctx context.Context) (*ProcessInfo, error) {
	for {
		info := &ProcessInfo{}
		if err := p.sandbox.transport.fetch(ctx, p.call("GET", "/wait?timeoutSeconds=50", "wait for a process"), info); err != nil {
			return nil, err
		}
		if !info.Running {
			return info, nil
		}
	}
}

// Events returns all events from the offset on, until the process ends. After a lost connection the stream resumes at the same position.
func (p *Process) Events(ctx context.Context, offset int64) (*Events, error) {
	again := func(offset int64) (io.ReadCloser, error) {
		c := p.call("GET", fmt.Sprintf("/output?follow=true&offset=%d", offset), "watch a process")
		c.headers = http.Header{"Accept": {"application/x-ndjson"}}
		answer, err := p.sandbox.transport.send(ctx, c)
		if err != nil {
			return nil, err
		}
		return answer.Body, nil
	}
	body, err := again(offset)
	if err != nil {
		return nil, err
	}
	return &Events{
		ctx: ctx, operation: "watch a process", broken: ErrDisconnected, body: body, lines: newLines(body), again: again, offset: offset,
	}, nil
}

// Write writes to the standard input of the process.
func (p *Process) Write(ctx context.Context, data []byte) error {
	c := p.call("POST", "/stdin", "write to a process")
	c.body = data
	return p.done(ctx, c)
}

// EndInput closes the standard input of the process.
func (p *Process) EndInput(ctx context.Context) error {
	return p.done(ctx, p.call("POST", "/stdin?eof=true", "end a process's input"))
}

// Resize changes the size of the process's terminal.
func (p *Process) Resize(ctx context.Context, columns, rows int) error {
	c := p.call("POST", "/resize", "resize a terminal")
	c.body, _ = json.Marshal(terminalSize{Columns: columns, Rows: rows})
	return p.done(ctx, c)
}

// Signal sends a signal: TERM, SIGTERM or 15.
func (p *Process) Signal(ctx context.Context, signal string) error {
	c := p.call("POST", "/signal", "send a signal")
	c.body, _ = json.Marshal(map[string]string{"signal": signal})
	return p.done(ctx, c)
}

// Kill kills the process and all processes that it started, and removes it from the list of processes.
func (p *Process) Kill(ctx context.Context) error {
	c := p.call("DELETE", "", "end a process")
	c.accept = []int{404}
	return p.done(ctx, c)
}

func (p *Process) done(ctx context.Context, c call) error {
	answer, err := p.sandbox.transport.send(ctx, c)
	if err != nil {
		return err
	}
	return answer.Body.Close()
}
