package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
)

// Without root only some machines can take snapshots, and a control plane of Kubernetes alone does not know the kind.
func snapshotClient(t *testing.T) *Client {
	t.Helper()
	if os.Geteuid() != 0 || os.Getenv("AGENT_SANDBOX_TEST_CONNECTION") != "" {
		t.Skip("snapshots need an engine that runs as root")
	}
	return testClient(t)
}

func expectState(t *testing.T, box *Sandbox, wanted string) {
	t.Helper()
	content, err := box.Files().ReadFile(testContext(t), "state")
	if err != nil || string(content) != wanted {
		t.Fatalf("%s: %q instead of %q: %v", box.Name, content, wanted, err)
	}
}

func write(t *testing.T, box *Sandbox, text string) {
	t.Helper()
	if err := box.Files().WriteFile(testContext(t), "state", []byte(text), 0); err != nil {
		t.Fatal(err)
	}
}

func deleteAtEnd(t *testing.T, boxes ...*Sandbox) {
	t.Cleanup(func() {
		for _, box := range boxes {
			if err := box.Delete(context.Background()); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestSnapshotsForksAndTheWayBack(t *testing.T) {
	client := snapshotClient(t)
	ctx := testContext(t)
	box := testSandbox(t, client)
	write(t, box, "good")
	taken, err := box.Snapshot(ctx, SnapshotName("go-good"), SnapshotLabels(map[string]string{"who": "go"}), SnapshotExpiresAfter(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if taken.Name != "go-good" || taken.Sandbox != box.Name || !taken.Ready || taken.SizeBytes == 0 || taken.Labels["who"] != "go" ||
		taken.TakenAt.IsZero() || taken.ExpiresAt.IsZero() {
		t.Fatalf("%+v", taken)
	}
	if _, err := box.Snapshot(ctx, SnapshotName("go-good")); !errors.Is(err, ErrAlreadyExists) {
		t.Fatalf("%v", err)
	}
	write(t, box, "bad")
	forks, err := box.Fork(ctx, 2, ExpiresAfter(time.Hour), ClaimLabels(map[string]string{"who": "go"}))
	if err != nil || len(forks) != 2 {
		t.Fatalf("%v %v", forks, err)
	}
	deleteAtEnd(t, forks...)
	write(t, forks[0], "forked")
	expectState(t, box, "bad")
	expectState(t, forks[0], "forked")
	expectState(t, forks[1], "bad")
	if object, err := forks[0].Object(ctx); err != nil || object.Labels["who"] != "go" || object.Spec.ShutdownTime == nil {
		t.Fatalf("%+v %v", object, err)
	}
	for _, one := range []*Sandbox{box, forks[0]} {
		if err := one.Rollback(ctx, "go-good"); err != nil {
			t.Fatal(err)
		}
		expectState(t, one, "good")
	}
	if err := box.Suspend(ctx); err != nil {
		t.Fatal(err)
	}
	if err := box.Rollback(ctx, "go-good"); err != nil {
		t.Fatal(err)
	}
	if object, err := box.Object(ctx); err != nil || object.Spec.OperatingMode != "Suspended" {
		t.Fatalf("it does not stay suspended: %+v %v", object, err)
	}
	if err := box.Resume(ctx); err != nil {
		t.Fatal(err)
	}
	other, err := client.CreateFromSnapshot(ctx, "", "go-good")
	if err != nil {
		t.Fatal(err)
	}
	deleteAtEnd(t, other)
	expectState(t, other, "good")
	list, err := client.Snapshots(ctx)
	if err != nil || len(list) == 0 || list[0].Name != "go-good" {
		t.Fatalf("%+v %v", list, err)
	}
	for _, one := range list[1:] {
		if one.Sandbox == box.Name && !one.deleting {
			t.Errorf("the fork's own snapshot %q is left", one.Name)
		}
	}
	if err := client.DeleteSnapshot(ctx, "go-good"); err != nil {
		t.Fatal(err)
	}
	expectState(t, other, "good")
}

func TestSnapshotsThatDoNotExist(t *testing.T) {
	client := snapshotClient(t)
	ctx := testContext(t)
	box := testSandbox(t, client)
	if err := box.Rollback(ctx, "no-such"); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "no-such") {
		t.Fatalf("%v", err)
	}
	if _, err := client.CreateFromSnapshot(ctx, "", "no-such"); !errors.Is(err, ErrNotFound) {
		t.Fatalf("%v", err)
	}
	if err := client.DeleteSnapshot(ctx, "no-such"); !errors.Is(err, ErrNotFound) {
		t.Fatalf("%v", err)
	}
	if _, err := box.Fork(ctx, 0); err == nil {
		t.Fatal("no sandbox was made, and no error")
	}
}

// A sandbox from a snapshot has the template, without what belongs to the first sandbox alone.
func TestASandboxFromASnapshotLeavesOutWhatIsNotItsOwn(t *testing.T) {
	read := func(source string) *Snapshot {
		object := &snapshotObject{}
		text := `{"metadata": {"name": "s", "namespace": "n"}, "status": {"sandbox": ` + source + `}}`
		if err := json.Unmarshal([]byte(text), object); err != nil {
			t.Fatal(err)
		}
		return object.snapshot()
	}
	made, err := sandboxFrom(read(`{"egress": {"agent-sandbox.github.io/egress": "rules"}, "podTemplate": {
		"metadata": {"labels": {"mine": "1", "agents.x-k8s.io/claim-uid": "u"}, "annotations": {"agent-sandbox.github.io/idle-timeout": "1m", "a": "b"}},
		"spec": {"containers": [{"name": "c", "image": "host"}]}}}`), "new", &claimOptions{expiresAfter: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	metadata, spec := made["metadata"].(map[string]any), made["spec"].(map[string]any)
	wanted := map[string]string{"agent-sandbox.github.io/egress": "rules", snapshotAnnotation: "s"}
	if !reflect.DeepEqual(metadata["annotations"], wanted) || spec["shutdownPolicy"] != "Delete" {
		t.Fatalf("%+v", made)
	}
	pairs := spec["podTemplate"].(map[string]any)["metadata"]
	if !reflect.DeepEqual(pairs, map[string]any{"labels": map[string]any{"mine": "1"}, "annotations": map[string]any{"a": "b"}}) {
		t.Fatalf("%+v", pairs)
	}
	for _, source := range []string{
		`null`, `{"podTemplate": {}, "volumeClaimTemplates": [{}]}`,
		`{"podTemplate": {"metadata": {"annotations": {"agent-sandbox.dev/copied-volumes": "x"}}}}`,
	} {
		if _, err := sandboxFrom(read(source), "new", &claimOptions{}); err == nil {
			t.Errorf("%s: no error", source)
		}
	}
}
