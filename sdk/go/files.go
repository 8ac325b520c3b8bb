package sandbox

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// maxFile is the maximum size of a file that ReadFile reads into memory.
const maxFile = 256 << 20

// Files gives access to a sandbox's files. A path without a leading slash is relative to the sandbox's base directory.
type Files struct{ sandbox *Sandbox }

// Files of the sandbox.
func (s *Sandbox) Files() *Files { return &Files{s} }

func at(endpoint, path string, more ...string) string {
	query := url.Values{"path": {path}}
	for i := 0; i+1 < len(more); i += 2 {
		query.Set(more[i], more[i+1])
	}
	return prefix + "/" + endpoint + "?" + query.Encode()
}

func (f *Files) send(ctx context.Context, c call) (*http.Response, error) {
	return f.sandbox.transport.send(ctx, c)
}

func (f *Files) done(ctx context.Context, c call) error {
	answer, err := f.send(ctx, c)
	if err != nil {
		return err
	}
	return answer.Body.Close()
}

// Open returns a reader that streams a file.
func (f *Files) Open(ctx context.Context, path string) (io.ReadCloser, error) {
	return f.OpenRange(ctx, path, 0, -1)
}

// OpenRange reads a part of a file: length bytes from the offset, or all from there on for a negative length.
func (f *Files) OpenRange(ctx context.Context, path string, offset, length int64) (io.ReadCloser, error) {
	answer, err := f.open(ctx, path, offset, length)
	if err != nil {
		return nil, err
	}
	return answer.Body, nil
}

func (f *Files) open(ctx context.Context, path string, offset, length int64) (*http.Response, error) {
	headers := http.Header{}
	switch {
	case length >= 0:
		headers.Set("Range", fmt.Sprintf("bytes=%d-%d", offset, offset+max(length, 1)-1))
	case offset > 0:
		headers.Set("Range", fmt.Sprintf("bytes=%d-", offset))
	}
	return f.send(ctx, call{method: "GET", path: at("files", path), operation: "read " + path, headers: headers, repeat: true})
}

// ReadFile reads a whole file. A file larger than 256 MiB gives ErrTooLarge before anything is read.
func (f *Files) ReadFile(ctx context.Context, path string) ([]byte, error) {
	answer, err := f.open(ctx, path, 0, -1)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	content, err := readLimited(answer, maxFile)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return content, nil
}

// WriteFile writes a file atomically; it is repeated after a lost connection. A mode of 0 keeps the permissions.
func (f *Files) WriteFile(ctx context.Context, path string, content []byte, mode fs.FileMode) error {
	if content == nil {
		content = []byte{}
	}
	return f.done(ctx, call{method: "PUT", path: writePath(path, mode, false), operation: "write " + path, body: content, repeat: true})
}

// Write writes a file from a reader, atomically. It is sent once.
func (f *Files) Write(ctx context.Context, path string, content io.Reader) error {
	return f.done(ctx, call{method: "PUT", path: writePath(path, 0, false), operation: "write " + path, stream: content})
}

// Append adds to a file. It is sent once.
func (f *Files) Append(ctx context.Context, path string, content []byte) error {
	return f.done(ctx, call{method: "PUT", path: writePath(path, 0, true), operation: "append to " + path, body: content})
}

func writePath(path string, mode fs.FileMode, appending bool) string {
	var more []string
	if mode != 0 {
		more = append(more, "mode", strconv.FormatUint(uint64(mode.Perm()), 8))
	}
	if appending {
		more = append(more, "append", "true")
	}
	return at("files", path, more...)
}

// Stat returns information about a path; links are not followed.
func (f *Files) Stat(ctx context.Context, path string) (*FileInfo, error) {
	info := &FileInfo{}
	return info, f.sandbox.transport.fetch(ctx, call{method: "GET", path: at("files/stat", path), operation: "look at " + path, repeat: true}, info)
}

// Exists reports whether a path exists.
func (f *Files) Exists(ctx context.Context, path string) (bool, error) {
	_, err := f.Stat(ctx, path)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// List returns the entries of a directory, sorted by name.
func (f *Files) List(ctx context.Context, path string) ([]FileInfo, error) {
	return f.list(ctx, at("files/list", path, "limit", "100000"), "list "+path)
}

// Glob returns the files below a path that match a pattern such as **/*.py.
func (f *Files) Glob(ctx context.Context, path, pattern string) ([]FileInfo, error) {
	return f.list(ctx, at("files/glob", path, "pattern", pattern, "limit", "100000"), "search "+path)
}

func (f *Files) list(ctx context.Context, endpoint, operation string) ([]FileInfo, error) {
	var found struct {
		Entries   []FileInfo
		Truncated bool
	}
	if err := f.sandbox.transport.fetch(ctx, call{method: "GET", path: endpoint, operation: operation, repeat: true}, &found); err != nil {
		return nil, err
	}
	if found.Truncated {
		return nil, fmt.Errorf("%s: %w: more than 100000 entries", operation, ErrTooLarge)
	}
	return found.Entries, nil
}

// Search returns the lines below a path that match a regular expression.
func (f *Files) Search(ctx context.Context, path, pattern string) ([]Match, error) {
	var found struct{ Matches []Match }
	err := f.sandbox.transport.fetch(ctx, call{method: "GET", path: at("files/search", path, "pattern", pattern), operation: "search " + path, repeat: true}, &found)
	return found.Matches, err
}

// Remove removes a file or an empty directory.
func (f *Files) Remove(ctx context.Context, path string) error {
	return f.done(ctx, call{method: "DELETE", path: at("files", path), operation: "remove " + path})
}

// RemoveAll removes a directory and everything in it.
func (f *Files) RemoveAll(ctx context.Context, path string) error {
	return f.done(ctx, call{method: "DELETE", path: at("files", path, "recursive", "true"), operation: "remove " + path})
}

// Mkdir creates a directory and its missing parents.
func (f *Files) Mkdir(ctx context.Context, path string) error {
	return f.change(ctx, "mkdir", map[string]any{"path": path}, "make "+path, true)
}

// Rename moves a file or a directory; an existing destination is replaced only with overwrite.
func (f *Files) Rename(ctx context.Context, from, to string, overwrite bool) error {
	return f.change(ctx, "move", map[string]any{"from": from, "to": to, "overwrite": overwrite}, "move "+from, false)
}

// Copy copies a file or a directory inside the sandbox.
func (f *Files) Copy(ctx context.Context, from, to string, overwrite bool) error {
	return f.change(ctx, "copy", map[string]any{"from": from, "to": to, "overwrite": overwrite}, "copy "+from, false)
}

// Chmod sets permissions.
func (f *Files) Chmod(ctx context.Context, path string, mode fs.FileMode) error {
	return f.change(ctx, "chmod", map[string]any{"path": path, "mode": fmt.Sprintf("%04o", mode.Perm())}, "change "+path, true)
}

func (f *Files) change(ctx context.Context, endpoint string, request map[string]any, operation string, repeat bool) error {
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	return f.done(ctx, call{method: "POST", path: prefix + "/files/" + endpoint, operation: operation, body: body, repeat: repeat})
}

// Watch yields changes below a path from now on. An error is the last value it yields: changes may have been missed then.
func (f *Files) Watch(ctx context.Context, path string, recursive bool) (iter.Seq2[Change, error], error) {
	headers := http.Header{"Accept": {"application/x-ndjson"}}
	answer, err := f.send(ctx, call{
		method: "GET", path: at("files/watch", path, "recursive", strconv.FormatBool(recursive)), operation: "watch " + path, headers: headers, repeat: true,
	})
	if err != nil {
		return nil, err
	}
	lines := newLines(answer.Body)
	// The first line reports that the watch is established.
	if _, err := lines.ReadBytes('\n'); err != nil {
		answer.Body.Close()
		return nil, fmt.Errorf("watch %s: %w: %w", path, ErrDisconnected, err)
	}
	return func(yield func(Change, error) bool) {
		defer answer.Body.Close()
		for {
			line, err := lines.ReadBytes('\n')
			if err != nil {
				yield(Change{}, fmt.Errorf("watch %s: %w: %w", path, ErrDisconnected, err))
				return
			}
			var change Change
			if len(bytes.TrimSpace(line)) == 0 {
				continue
			}
			if err := json.Unmarshal(line, &change); err != nil || !yield(change, nil) {
				return
			}
		}
	}, nil
}

// UploadDir copies a local directory into a directory of the sandbox, which is created when it is missing.
func (f *Files) UploadDir(ctx context.Context, local, path string) error {
	reader, writer := io.Pipe()
	go func() {
		archive := tar.NewWriter(writer)
		err := archive.AddFS(os.DirFS(local))
		if err == nil {
			err = archive.Close()
		}
		// Closing with an error aborts the body, so that a truncated archive is not taken for a complete one.
		writer.CloseWithError(err)
	}()
	defer reader.Close()
	return f.done(ctx, call{method: "PUT", path: at("files/tar", path), operation: "unpack into " + path, stream: reader})
}

// DownloadDir copies a directory of the sandbox into a local one. Entries that would lead out of it are rejected.
func (f *Files) DownloadDir(ctx context.Context, path, local string) error {
	answer, err := f.send(ctx, call{method: "GET", path: at("files/tar", path), operation: "pack " + path, repeat: true})
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if err := os.MkdirAll(local, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(local)
	if err != nil {
		return err
	}
	defer root.Close()
	archive := tar.NewReader(answer.Body)
	for {
		entry, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("unpack %s: %w", path, err)
		}
		if err := unpack(root, entry, archive); err != nil {
			return fmt.Errorf("unpack %s: %s: %w", path, entry.Name, err)
		}
	}
}

func unpack(root *os.Root, entry *tar.Header, content io.Reader) error {
	name := filepath.Clean(strings.TrimPrefix(entry.Name, "/"))
	if name == "." {
		return nil
	}
	if parent := filepath.Dir(name); parent != "." {
		if err := root.MkdirAll(parent, 0o755); err != nil {
			return err
		}
	}
	mode := entry.FileInfo().Mode().Perm()
	switch entry.Typeflag {
	case tar.TypeDir:
		return root.MkdirAll(name, mode|0o700)
	case tar.TypeSymlink:
		return root.Symlink(entry.Linkname, name)
	case tar.TypeReg:
		file, err := root.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, mode)
		if err != nil {
			return err
		}
		_, err = io.Copy(file, content)
		return errors.Join(err, file.Close())
	}
	return nil
}
