// Package api_test checks that the generated types keep all fields of the API, and that deep copies share nothing.
package api_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	extensions "github.com/agent-sandbox/agent-sandbox-rs/sdk/go/api/extensions/v1beta1"
	alpha "github.com/agent-sandbox/agent-sandbox-rs/sdk/go/api/v1alpha1"
	agents "github.com/agent-sandbox/agent-sandbox-rs/sdk/go/api/v1beta1"
)

func TestObjectsGoThroughUnchanged(t *testing.T) {
	text := `{"kind":"Sandbox","apiVersion":"agents.x-k8s.io/v1beta1","metadata":{"name":"a","creationTimestamp":null},"spec":{"operatingMode":"Suspended","podTemplate":{"metadata":{"labels":{"k":"v"}},"spec":{"containers":[{"name":"c","image":"i","resources":{}}]}}},"status":{"podIPs":["10.0.0.1"]}}`
	var box agents.Sandbox
	if err := json.Unmarshal([]byte(text), &box); err != nil {
		t.Fatal(err)
	}
	if box.Spec.OperatingMode != agents.SandboxSpecOperatingModeSuspended || box.Status.PodIPs[0] != "10.0.0.1" {
		t.Fatalf("%+v", box)
	}
	copied := box.DeepCopy()
	copied.Spec.PodTemplate.Metadata.Labels["k"] = "other"
	copied.Spec.PodTemplate.Spec.Containers[0].Image = "other"
	copied.Status.PodIPs[0] = "other"
	again, _ := json.Marshal(box)
	var before, after map[string]any
	json.Unmarshal([]byte(text), &before)
	json.Unmarshal(again, &after)
	delete(before["metadata"].(map[string]any), "creationTimestamp")
	delete(after["metadata"].(map[string]any), "creationTimestamp")
	left, _ := json.Marshal(before)
	right, _ := json.Marshal(after)
	if string(left) != string(right) {
		t.Fatalf("%s\n%s", left, right)
	}
}

func TestEveryVersionIsThere(t *testing.T) {
	replicas := int32(1)
	if (&alpha.Sandbox{Spec: alpha.SandboxSpec{Replicas: &replicas}}).DeepCopy().Spec.Replicas == &replicas {
		t.Fatal("a copy shares a pointer")
	}
	var list extensions.SandboxClaimList
	if err := json.Unmarshal([]byte(`{"items":[{"metadata":{"name":"c"},"spec":{"warmPoolRef":{"name":"p"}},"status":{"sandbox":{"name":"s"}}}]}`), &list); err != nil || list.Items[0].Status.Sandbox.Name != "s" {
		t.Fatalf("%+v %v", list, err)
	}
}

func TestTypesAreUpToDate(t *testing.T) {
	made := t.TempDir()
	if output, err := exec.Command("go", "run", "../internal/apigen", "../../../deploy/crds", made).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	for _, folder := range []string{"v1alpha1", "v1beta1", "extensions/v1alpha1", "extensions/v1beta1"} {
		file := filepath.Join(folder, "zz_generated.types.go")
		want, err := os.ReadFile(filepath.Join(made, file))
		if err != nil {
			t.Fatal(err)
		}
		if have, err := os.ReadFile(file); err != nil || string(have) != string(want) {
			t.Errorf("%s is out of date: make generate (%v)", file, err)
		}
	}
}
