package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"strings"
)

// Runtime uses the dialect of the python-compatible runtime, for images that contain it instead of our daemon.
type Runtime struct{ sandbox *Sandbox }

// Runtime of the sandbox.
func (s *Sandbox) Runtime() *Runtime { return &Runtime{s} }

// Execution is a finished command of the runtime.
type Execution struct {
	Stdout   string `json:"stdout"`
	Stderr   string `json:"stderr"`
	ExitCode int    `json:"exit_code"`
	TimedOut bool   `json:"timed_out"`
}

// Entry is a file or directory as the runtime lists it.
type Entry struct {
	Name    string  `json:"name"`
	Size    int64   `json:"size"`
	Type    string  `json:"type"`
	ModTime float64 `json:"mod_time"`
}

// Execute runs a command. It is sent once.
func (r *Runtime) Execute(ctx context.Context, text string) (*Execution, error) {
	body, err := json.Marshal(map[string]string{"command": text})
	if err != nil {
		return nil, err
	}
	// A response without an exit code does not mean success.
	result := &Execution{ExitCode: -1}
	headers := http.Header{"Content-Type": {"application/json"}}
	return result, r.sandbox.transport.fetch(ctx, call{method: "POST", path: "/execute", operation: "run a command", headers: headers, body: body}, result)
}

// Upload writes a file below the runtime's base directory. It is sent once.
func (r *Runtime) Upload(ctx context.Context, path string, content []byte) error {
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	part, err := form.CreateFormFile("file", path)
	if err != nil {
		return err
	}
	part.Write(content)
	form.Close()
	headers := http.Header{"Content-Type": {form.FormDataContentType()}}
	return r.sandbox.transport.fetch(ctx, call{method: "POST", path: "/upload", operation: "write " + path, headers: headers, body: body.Bytes()}, nil)
}

// Download reads a file.
func (r *Runtime) Download(ctx context.Context, path string) (io.ReadCloser, error) {
	answer, err := r.sandbox.transport.send(ctx, call{method: "GET", path: "/download/" + segment(path), operation: "read " + path, repeat: true})
	if err != nil {
		return nil, err
	}
	return answer.Body, nil
}

// List returns the files and directories of a directory; other entries are left out.
func (r *Runtime) List(ctx context.Context, path string) ([]Entry, error) {
	var all []Entry
	if err := r.sandbox.transport.fetch(ctx, call{method: "GET", path: "/list/" + segment(path), operation: "list " + path, repeat: true}, &all); err != nil {
		return nil, err
	}
	var known []Entry
	for _, entry := range all {
		if entry.Type == "file" || entry.Type == "directory" {
			known = append(known, entry)
		}
	}
	return known, nil
}

// Exists reports whether a path exists.
func (r *Runtime) Exists(ctx context.Context, path string) (bool, error) {
	var answer struct{ Exists bool }
	err := r.sandbox.transport.fetch(ctx, call{method: "GET", path: "/exists/" + segment(path), operation: "test " + path, repeat: true}, &answer)
	return answer.Exists, err
}

// segment returns a whole path as one URL segment; dots are percent-encoded so that no proxy normalises them.
func segment(path string) string {
	parts := strings.Split(path, "/")
	for i, part := range parts {
		switch part {
		case ".":
			parts[i] = "%2E"
		case "..":
			parts[i] = "%2E%2E"
		default:
			parts[i] = url.PathEscape(part)
		}
	}
	return strings.Join(parts, "%2F")
}

// Sandboxd uses the sandboxd dialect's file API. It needs a direct connection to the daemon, such as WithPodTunnel.
type Sandboxd struct {
	sandbox *Sandbox
	port    int
}

// Sandboxd of the sandbox, whose file API listens on the port (8080 for 0).
func (s *Sandbox) Sandboxd(port int) *Sandboxd {
	if port == 0 {
		port = 8080
	}
	return &Sandboxd{s, port}
}

// Write writes a file below the daemon's root.
func (d *Sandboxd) Write(ctx context.Context, path string, content []byte) error {
	endpoint, err := d.path(path)
	if err != nil {
		return err
	}
	headers := http.Header{"Content-Type": {"application/octet-stream"}}
	return d.sandbox.transport.fetch(ctx, call{method: "PUT", path: endpoint, operation: "write " + path, headers: headers, body: content, port: d.port, repeat: true}, nil)
}

// Read reads a file below the daemon's root.
func (d *Sandboxd) Read(ctx context.Context, path string) ([]byte, error) {
	endpoint, err := d.path(path)
	if err != nil {
		return nil, err
	}
	answer, err := d.sandbox.transport.send(ctx, call{method: "GET", path: endpoint, operation: "read " + path, port: d.port, repeat: true})
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	return readLimited(answer, maxFile)
}

func (d *Sandboxd) path(path string) (string, error) {
	for _, part := range strings.Split(path, "/") {
		if part == ".." {
			return "", fmt.Errorf("path %q leads out of the sandbox's root", path)
		}
	}
	return "/v1/files/" + segment(strings.TrimLeft(path, "/")), nil
}
