package sandbox

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	agents "github.com/agent-sandbox/agent-sandbox-rs/sdk/go/api/v1beta1"
)

// Sandbox is a handle to one sandbox. The sandbox exists until Delete is called.
type Sandbox struct {
	// Name is the sandbox's own name, which differs from its claim's when it came from a pool.
	Name string
	// Namespace of the sandbox.
	Namespace string
	// Claim is the name of the sandbox's claim, or "".
	Claim string

	client    *Client
	transport *transport
	mutex     sync.Mutex
	boot      string
}

// Object returns the current Sandbox object.
func (s *Sandbox) Object(ctx context.Context) (*agents.Sandbox, error) {
	return s.transport.kube.sandbox(ctx, s.Namespace, s.Name)
}

// Suspend stops the sandbox and waits until it has stopped. Its files and its name are kept.
func (s *Sandbox) Suspend(ctx context.Context) error {
	if err := s.transport.kube.patchSandbox(ctx, s.Namespace, s.Name, []byte(`{"spec":{"operatingMode":"Suspended"}}`)); err != nil {
		return err
	}
	return s.transport.kube.waitSandbox(ctx, s.Namespace, s.Name, "suspended", func(found *agents.Sandbox) (bool, error) {
		for _, condition := range found.Status.Conditions {
			if condition.Type == "Suspended" && condition.Status == metav1.ConditionTrue {
				return true, nil
			}
		}
		return false, nil
	})
}

// Resume starts a suspended sandbox again and waits until it is ready.
func (s *Sandbox) Resume(ctx context.Context) error {
	if err := s.transport.kube.patchSandbox(ctx, s.Namespace, s.Name, []byte(`{"spec":{"operatingMode":"Running"}}`)); err != nil {
		return err
	}
	return s.waitReady(ctx)
}

func (s *Sandbox) waitReady(ctx context.Context) error {
	k, last := s.transport.kube, ""
	ready := func(found *agents.Sandbox) (bool, error) {
		for _, condition := range found.Status.Conditions {
			// A condition counts only when its observedGeneration is the current generation.
			if condition.Type == "Ready" && condition.ObservedGeneration != 0 && condition.ObservedGeneration < found.Generation {
				return false, nil
			}
		}
		return lookAt(s.Name, found.Status.Conditions, &last)
	}
	return k.untilFailure(ctx, s.Namespace, s.Name, k.sandboxUID(s.Namespace, s.Name), func(ctx context.Context) error {
		return k.waitSandbox(ctx, s.Namespace, s.Name, "ready", ready)
	})
}

// ExpireAfter schedules the deletion of the sandbox after that time, whether or not this program still runs.
func (s *Sandbox) ExpireAfter(ctx context.Context, after time.Duration) error {
	end := map[string]string{"shutdownTime": time.Now().Add(after).UTC().Format("2006-01-02T15:04:05Z"), "shutdownPolicy": "Delete"}
	if s.Claim == "" {
		patch, _ := json.Marshal(map[string]any{"spec": end})
		return s.transport.kube.patchSandbox(ctx, s.Namespace, s.Name, patch)
	}
	patch, _ := json.Marshal(map[string]any{"spec": map[string]any{"lifecycle": end}})
	err := s.transport.kube.extensions.Patch(types.MergePatchType).Namespace(s.Namespace).Resource("sandboxclaims").
		Name(s.Claim).Body(patch).Do(ctx).Error()
	return apiError(fmt.Sprintf("set when %q expires", s.Name), err)
}

// Delete deletes the sandbox, or its claim when it has one. A sandbox that does not exist is no error.
func (s *Sandbox) Delete(ctx context.Context) error {
	if s.Claim != "" {
		return s.transport.kube.deleteClaim(ctx, s.Namespace, s.Claim, "")
	}
	err := s.transport.kube.agents.Delete().Namespace(s.Namespace).Resource("sandboxes").Name(s.Name).Do(ctx).Error()
	if apierrors.IsNotFound(err) {
		return nil
	}
	return apiError(fmt.Sprintf("delete sandbox %q", s.Name), err)
}

// Info returns facts about the sandbox's daemon.
func (s *Sandbox) Info(ctx context.Context) (*Info, error) {
	info := &Info{}
	err := s.transport.fetch(ctx, call{method: "GET", path: prefix, operation: "ask the sandbox about itself", repeat: true}, info)
	return info, err
}

// Ports returns the ports on which programs in the sandbox listen, its daemon's included.
func (s *Sandbox) Ports(ctx context.Context) ([]ListeningPort, error) {
	var answer struct {
		Ports []ListeningPort `json:"ports"`
	}
	err := s.transport.fetch(ctx, call{method: "GET", path: prefix + "/ports", operation: "list the ports", repeat: true}, &answer)
	return answer.Ports, err
}

func (s *Sandbox) bootID(ctx context.Context) (string, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.boot == "" {
		info, err := s.Info(ctx)
		if err != nil {
			return "", err
		}
		s.boot = info.BootID
	}
	return s.boot, nil
}

func (s *Sandbox) forgetBoot() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.boot = ""
}
