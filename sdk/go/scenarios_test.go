package sandbox

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"sort"
	"strconv"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

// step is one line of tests/scenarios/sdk.yaml.
type step struct {
	Do                                                        string
	Command, Cwd, Path, From, To, Pattern, Text, Base64, Mode string
	Process, Keep, Key, Signal, Name, Source, Write, Error    string
	Stdin                                                     *string
	Argv                                                      []string
	Env, Files                                                map[string]string
	Timeout                                                   float64
	Offset, Length, MaxBytes                                  *int64
	Recursive                                                 bool
	Port                                                      int
	Terminal                                                  []int
	Expect                                                    map[string]any
}

type scenarioRunner struct {
	t         *testing.T
	ctx       context.Context
	client    *Client
	box       *Sandbox
	processes map[string]*Process
}

// The scenarios that all our SDKs run.
func TestScenarios(t *testing.T) {
	content, err := os.ReadFile("../../tests/scenarios/sdk.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var scenarios []struct {
		Name  string
		Steps []step
	}
	if err := yaml.Unmarshal(content, &scenarios); err != nil {
		t.Fatal(err)
	}
	for _, scenario := range scenarios {
		t.Run(scenario.Name, func(t *testing.T) {
			client := testClient(t)
			runner := &scenarioRunner{t, testContext(t), client, testSandbox(t, client), map[string]*Process{}}
			for _, step := range scenario.Steps {
				came, err := runner.perform(step)
				runner.compare(step, came, err)
			}
		})
	}
}

func (r *scenarioRunner) compare(step step, came map[string]any, err error) {
	r.t.Helper()
	kinds := map[string]error{"not_found": ErrNotFound, "no_source": ErrNoSource, "too_large": ErrTooLarge}
	if step.Error != "" {
		// The limit of ReadFile is fixed in this SDK; larger files must be streamed.
		if step.Error == "too_large" {
			return
		}
		if !errors.Is(err, kinds[step.Error]) {
			r.t.Fatalf("%+v: %v instead of %s", step, err, step.Error)
		}
		return
	}
	if err != nil {
		r.t.Fatalf("%+v: %v", step, err)
	}
	for name, want := range step.Expect {
		if got := came[name]; fmt.Sprint(got) != fmt.Sprint(want) && !reflect.DeepEqual(got, want) {
			r.t.Fatalf("%+v: %s is %q, not %q", step, name, fmt.Sprint(got), fmt.Sprint(want))
		}
	}
}

func (s step) content() []byte {
	if s.Base64 != "" {
		decoded, _ := base64.StdEncoding.DecodeString(s.Base64)
		return decoded
	}
	return []byte(s.Text)
}

func number(value *int) any {
	if value == nil {
		return nil
	}
	return *value
}

func (r *scenarioRunner) perform(s step) (map[string]any, error) {
	switch s.Do {
	case "run", "stream", "start", "input", "end_input", "wait", "output", "reattach", "signal", "kill":
		return r.performCommand(s)
	}
	return r.performOther(s)
}

func (r *scenarioRunner) performCommand(s step) (map[string]any, error) {
	var options []RunOption
	for name, value := range s.Env {
		options = append(options, Env(name, value))
	}
	if s.Cwd != "" {
		options = append(options, Cwd(s.Cwd))
	}
	if s.Stdin != nil {
		options = append(options, Stdin(*s.Stdin))
	}
	if s.Timeout != 0 {
		options = append(options, Limit(time.Duration(s.Timeout*float64(time.Second))))
	}
	if s.Key != "" {
		options = append(options, IdempotencyKey(s.Key))
	}
	if s.Terminal != nil {
		options = append(options, Terminal(s.Terminal[0], s.Terminal[1]))
	}
	process := r.processes[s.Process]
	switch s.Do {
	case "run":
		var result *Result
		var err error
		if s.Argv != nil {
			result, err = r.box.RunArgs(r.ctx, s.Argv, options...)
		} else {
			result, err = r.box.Run(r.ctx, s.Command, options...)
		}
		if err != nil {
			return nil, err
		}
		return map[string]any{
			"stdout": string(result.Stdout), "stderr": string(result.Stderr), "exit_code": result.ExitCode, "timed_out": result.TimedOut,
			"signal": number(result.Signal), "stdout_base64": base64.StdEncoding.EncodeToString(result.Stdout),
		}, nil
	case "stream":
		events, err := r.box.Stream(r.ctx, s.Command, options...)
		return gather(events, err)
	case "start":
		started, err := r.box.Start(r.ctx, s.Command, options...)
		r.processes[s.Keep] = started
		return nil, err
	case "input":
		return nil, process.Write(r.ctx, []byte(s.Text))
	case "end_input":
		return nil, process.EndInput(r.ctx)
	case "wait":
		info, err := process.Wait(r.ctx)
		if err != nil {
			return nil, err
		}
		return map[string]any{"exit_code": number(info.ExitCode), "signal": number(info.Signal)}, nil
	case "reattach":
		found, err := r.box.Process(r.ctx, process.ID)
		if err != nil {
			return nil, err
		}
		process = found
		fallthrough
	case "output":
		events, err := process.Events(r.ctx, 0)
		return gather(events, err)
	case "signal":
		return nil, process.Signal(r.ctx, s.Signal)
	default:
		return nil, process.Kill(r.ctx)
	}
}

func gather(events *Events, err error) (map[string]any, error) {
	if err != nil {
		return nil, err
	}
	defer events.Close()
	came := map[string]any{}
	var stdout, stderr bytes.Buffer
	for event, err := range events.All() {
		if err != nil {
			return nil, err
		}
		switch event.Kind {
		case "stdout":
			stdout.Write(event.Data)
		case "stderr":
			stderr.Write(event.Data)
		case "exit":
			came["exit_code"] = event.ExitCode
		}
	}
	came["stdout"], came["stderr"] = stdout.String(), stderr.String()
	return came, nil
}

func (r *scenarioRunner) performOther(s step) (map[string]any, error) {
	files := r.box.Files()
	switch s.Do {
	case "write":
		mode, _ := strconv.ParseUint(s.Mode, 8, 32)
		return nil, files.WriteFile(r.ctx, s.Path, s.content(), fs.FileMode(mode))
	case "append":
		return nil, files.Append(r.ctx, s.Path, s.content())
	case "read":
		offset, length := int64(0), int64(-1)
		if s.Offset != nil {
			offset, length = *s.Offset, *s.Length
		}
		reader, err := files.OpenRange(r.ctx, s.Path, offset, length)
		if err != nil {
			return nil, err
		}
		defer reader.Close()
		content, err := io.ReadAll(reader)
		return map[string]any{"text": string(content), "base64": base64.StdEncoding.EncodeToString(content)}, err
	case "ports":
		ports, err := r.box.Ports(r.ctx)
		addresses := []any{}
		for _, found := range ports {
			if found.Port == s.Port {
				addresses = append(addresses, found.Address)
			}
		}
		return map[string]any{"addresses": addresses}, err
	case "stat":
		info, err := files.Stat(r.ctx, s.Path)
		return map[string]any{"type": info.Type, "size": info.Size, "name": info.Name, "mode": info.Mode}, err
	case "exists":
		there, err := files.Exists(r.ctx, s.Path)
		return map[string]any{"exists": there}, err
	case "list":
		list, err := files.List(r.ctx, s.Path)
		return names(list), err
	case "glob":
		list, err := files.Glob(r.ctx, s.Path, s.Pattern)
		return names(list), err
	case "search":
		found, err := files.Search(r.ctx, s.Path, s.Pattern)
		var lines []int64
		for _, match := range found {
			lines = append(lines, match.Line)
		}
		return map[string]any{"lines": lines}, err
	case "mkdir":
		return nil, files.Mkdir(r.ctx, s.Path)
	case "move":
		return nil, files.Rename(r.ctx, s.From, s.To, false)
	case "copy":
		return nil, files.Copy(r.ctx, s.From, s.To, false)
	case "remove":
		if s.Recursive {
			return nil, files.RemoveAll(r.ctx, s.Path)
		}
		return nil, files.Remove(r.ctx, s.Path)
	case "directory_round_trip":
		return nil, r.roundTrip(s)
	case "watch_one":
		return r.watchOne(s)
	case "suspend":
		return nil, r.box.Suspend(r.ctx)
	case "resume":
		return nil, r.box.Resume(r.ctx)
	case "find":
		_, err := r.client.Get(r.ctx, s.Name)
		return nil, err
	case "claim":
		_, err := r.client.Claim(r.ctx, s.Source, ReadyTimeout(20*time.Second))
		return nil, err
	}
	return nil, fmt.Errorf("the runner does not know %q", s.Do)
}

func names(list []FileInfo) map[string]any {
	var all []string
	for _, info := range list {
		all = append(all, info.Name)
	}
	sort.Strings(all)
	return map[string]any{"names": all}
}

func (r *scenarioRunner) roundTrip(s step) error {
	up, down := r.t.TempDir(), r.t.TempDir()
	for name, text := range s.Files {
		path := filepath.Join(up, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			return err
		}
	}
	if err := r.box.Files().UploadDir(r.ctx, up, s.Path); err != nil {
		return err
	}
	if err := r.box.Files().DownloadDir(r.ctx, s.Path, down); err != nil {
		return err
	}
	for name, text := range s.Files {
		if content, err := os.ReadFile(filepath.Join(down, name)); err != nil || string(content) != text {
			return fmt.Errorf("%s: %q %v", name, content, err)
		}
	}
	return nil
}

func (r *scenarioRunner) watchOne(s step) (map[string]any, error) {
	if err := r.box.Files().Mkdir(r.ctx, s.Path); err != nil {
		return nil, err
	}
	changes, err := r.box.Files().Watch(r.ctx, s.Path, false)
	if err != nil {
		return nil, err
	}
	if _, err := r.box.Run(r.ctx, "echo 1 > "+s.Path+"/"+s.Write); err != nil {
		return nil, err
	}
	for change, err := range changes {
		return map[string]any{"kinds": []string{change.Kind}}, err
	}
	return nil, errors.New("the watch ended")
}
