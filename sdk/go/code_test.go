package sandbox

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestCodeKeepsItsVariables(t *testing.T) {
	ctx := testContext(t)
	box := testSandbox(t, testClient(t))
	first, err := box.RunCode(ctx, "import os\nx = 20\nprint('out')\nx + 1")
	if err != nil || first.Text() != "21" || first.Stdout != "out\n" || first.Error != nil || first.ExecutionCount != 1 {
		t.Fatalf("%+v %v", first, err)
	}
	second, err := box.RunCode(ctx, "x * 2, os.environ['ONE_RUN']", CodeEnv(map[string]string{"ONE_RUN": "1"}))
	if err != nil || second.Text() != "(40, '1')" {
		t.Fatalf("%+v %v", second, err)
	}
	failed, err := box.RunCode(ctx, "1/0")
	if err != nil || failed.Error == nil || failed.Error.Name != "ZeroDivisionError" || failed.Text() != "" {
		t.Fatalf("%+v %v", failed, err)
	}
	other, err := box.CreateCodeContext(ctx, "/tmp")
	if err != nil {
		t.Fatal(err)
	}
	if there, err := box.RunCode(ctx, "import os\nos.getcwd()", InCodeContext(other.ID)); err != nil || there.Text() != "/tmp" {
		t.Fatalf("%+v %v", there, err)
	}
	if there, err := box.RunCode(ctx, "x", InCodeContext(other.ID)); err != nil || there.Error == nil {
		t.Fatalf("contexts share variables: %+v %v", there, err)
	}
	if err := box.RemoveCodeContext(ctx, other.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := box.RunCode(ctx, "1", InCodeContext(other.ID)); !errors.Is(err, ErrNotFound) {
		t.Fatalf("%v", err)
	}
	if _, err := box.RunCode(ctx, "import time; time.sleep(300)", CodeLimit(time.Second)); !errors.Is(err, ErrTimeout) {
		t.Fatalf("%v", err)
	}
	if after, err := box.RunCode(ctx, "x"); err != nil || after.Text() != "20" {
		t.Fatalf("it was ended instead of interrupted: %+v %v", after, err)
	}
}

func TestEventsOfCodeAddUp(t *testing.T) {
	read := func(lines ...string) (*CodeExecution, error) {
		return readExecution(newLines(strings.NewReader(strings.Join(lines, "\n") + "\n")))
	}
	got, err := read(
		`{"type": "number_of_executions", "execution_count": 3}`, `{"type": "keepalive"}`, `{"type": "of_the_future", "text": 1}`,
		`{"type": "stdout", "text": "a"}`, `{"type": "stdout", "text": "b"}`, `{"type": "stderr", "text": "c"}`,
		`{"type": "result", "html": "<b>"}`, `{"type": "result", "is_main_result": true, "text": "21"}`,
		`{"type": "error", "name": "E", "value": "v", "traceback": "t"}`, `{"type": "end_of_execution"}`,
	)
	if err != nil || got.Stdout != "ab" || got.Stderr != "c" || got.ExecutionCount != 3 || got.Text() != "21" || *got.Error != (CodeError{"E", "v", "t"}) {
		t.Fatalf("%+v %v", got, err)
	}
	if len(got.Results) != 2 || got.Results[0].Formats["html"] != "<b>" || len(got.Results[0].Formats) != 1 {
		t.Fatalf("%+v", got.Results)
	}
	if _, err := read(`{"type": "stdout", "text": "a"}`); err == nil {
		t.Fatal("a stream that broke is a result")
	}
}
