package sandbox

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	agents "github.com/agent-sandbox/agent-sandbox-rs/sdk/go/api/v1beta1"
)

const (
	wakeAnnotation        = "agent-sandbox.github.io/wake"
	wakeRequestedAt       = "agent-sandbox.github.io/wake-requested-at"
	suspendedByAnnotation = "agent-sandbox.github.io/suspended-by"
)

// wakesOnRequest reports whether a request wakes this suspended sandbox. One that a user suspended stays suspended.
func wakesOnRequest(box *agents.Sandbox) bool {
	switch box.Annotations[wakeAnnotation] {
	case "Always":
		return true
	case "", "IfIdle":
		return box.Annotations[suspendedByAnnotation] == "idle"
	}
	return false
}

// wakeAttempts bounds the attempts at the wake of a sandbox that changes while the wake is requested.
const wakeAttempts = 5

// requestWake asks the controller to resume a suspended sandbox. Only the annotation is written, and only to the version that
// was read. It returns the sandbox as it is afterwards: with the request, or as another client left it if it needs none.
func (k *kube) requestWake(ctx context.Context, box *agents.Sandbox) (*agents.Sandbox, error) {
	for attempt := 1; ; attempt++ {
		// In milliseconds, rounded up, as other clients write it.
		at := time.Now().UTC().Add(time.Millisecond - time.Nanosecond).Format("2006-01-02T15:04:05.000Z")
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
			"uid": box.UID, "resourceVersion": box.ResourceVersion, "annotations": map[string]string{wakeRequestedAt: at},
		}})
		if err != nil {
			return nil, err
		}
		asked := &agents.Sandbox{}
		err = k.agents.Patch(types.MergePatchType).Namespace(box.Namespace).Resource("sandboxes").Name(box.Name).
			Body(patch).Do(ctx).Into(asked)
		if err == nil {
			return asked, nil
		}
		if !apierrors.IsConflict(err) || attempt == wakeAttempts {
			return nil, apiError(fmt.Sprintf("wake %q", box.Name), err)
		}
		// It changed meanwhile: another client woke it, or the controller wrote its status.
		current := &agents.Sandbox{}
		err = k.agents.Get().Namespace(box.Namespace).Resource("sandboxes").Name(box.Name).Do(ctx).Into(current)
		if err != nil {
			return nil, apiError(fmt.Sprintf("wake %q", box.Name), err)
		}
		if current.Spec.OperatingMode != "Suspended" || !wakesOnRequest(current) {
			return current, nil
		}
		box = current
	}
}

// wake asks the controller to resume a suspended sandbox, and waits until it is ready. One that may not be woken any more is
// returned as it is.
func (k *kube) wake(ctx context.Context, box *agents.Sandbox) (*agents.Sandbox, error) {
	asked, err := k.requestWake(ctx, box)
	if err != nil || (asked.Spec.OperatingMode == "Suspended" && !wakesOnRequest(asked)) {
		return asked, err
	}
	var awake *agents.Sandbox
	last := ""
	err = k.waitSandbox(ctx, box.Namespace, box.Name, "awake", func(found *agents.Sandbox) (bool, error) {
		if found.Spec.OperatingMode == "Suspended" {
			if found.Generation > asked.Generation {
				return false, fmt.Errorf("%q was suspended again: %w", box.Name, ErrNotReady)
			}
			return false, nil
		}
		for _, condition := range found.Status.Conditions {
			if condition.Type == "Ready" && condition.ObservedGeneration != 0 && condition.ObservedGeneration < found.Generation {
				return false, nil
			}
		}
		awake = found
		return lookAt(box.Name, found.Status.Conditions, &last)
	})
	return awake, err
}
