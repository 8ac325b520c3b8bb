package sandbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// fatalReasons are reasons of Events after which a Pod that is started once does not run. On an engine a Pod whose start fails does not run later either.
// The nodes of other clusters repeat failed starts, for example when a registry is busy.
var fatalReasons = []string{"FailedCreatePodSandBox", "FailedMount", "Failed", "InspectFailed", "RuntimeClassUnavailable"}

// refusals are words of the API about a Pod that a namespace's rules (Pod Security, LimitRange) or its RuntimeClass exclude.
var refusals = []string{"violates PodSecurity", "usage per Container", "usage per Pod", "pod rejected: "}

const (
	// embeddedVersion is what the versions of engines contain, and those of other Kubernetes APIs do not.
	embeddedVersion = "+embedded."
	// startGrace is the time for a start before its failures are looked for: most starts take less, and make no further requests then.
	startGrace = 500 * time.Millisecond
	// lookAgain is the delay before a watch that ended is started again.
	lookAgain = 200 * time.Millisecond
)

// errCannotStart is the reason of a start that failed permanently, as the cause of a cancelled context.
type errCannotStart struct{ name, reason string }

func (e *errCannotStart) Error() string {
	return fmt.Sprintf("%q cannot start: %v: %s", e.name, ErrClaimFailed, e.reason)
}

func (e *errCannotStart) Unwrap() error { return ErrClaimFailed }

// untilFailure runs wait with a context that ends when, on an engine, a Pod of the owner (a Sandbox or a claim) fails to start. The error then has the reason.
func (k *kube) untilFailure(ctx context.Context, namespace, name string, owner func(context.Context) (types.UID, error), wait func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		if reason := k.startFailure(ctx, namespace, owner); reason != "" {
			cancel(&errCannotStart{name, reason})
		}
	}()
	err := wait(ctx)
	var failure *errCannotStart
	if err != nil && errors.As(context.Cause(ctx), &failure) {
		return failure
	}
	return err
}

// startFailure returns the reason of the owner's first permanent failure, or "" when ctx ends or the cluster is not an engine.
func (k *kube) startFailure(ctx context.Context, namespace string, owner func(context.Context) (types.UID, error)) string {
	select {
	case <-ctx.Done():
		return ""
	case <-time.After(startGrace):
	}
	version, err := k.core.Get().AbsPath("/version").Do(ctx).Raw()
	if err != nil || !strings.Contains(string(version), embeddedVersion) {
		return ""
	}
	uid, err := owner(ctx)
	if err != nil || uid == "" {
		return ""
	}
	for {
		if reason := k.followFailures(ctx, namespace, uid); reason != "" {
			return reason
		}
		select {
		case <-ctx.Done():
			return ""
		case <-time.After(lookAgain):
		}
	}
}

// followFailures watches the warnings about Pods, and the Pods, until one shows a permanent failure or a watch ends.
func (k *kube) followFailures(ctx context.Context, namespace string, owner types.UID) string {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	warnings, err := watchAll(ctx, k.core, namespace, "events", "involvedObject.kind=Pod,type=Warning")
	if err != nil {
		return ""
	}
	defer warnings.Stop()
	pods, err := watchAll(ctx, k.core, namespace, "pods", "")
	if err != nil {
		return ""
	}
	defer pods.Stop()
	for {
		select {
		case change, open := <-warnings.ResultChan():
			if !open {
				return ""
			}
			if event, ok := change.Object.(*corev1.Event); ok && slices.Contains(fatalReasons, event.Reason) && k.isCurrent(ctx, namespace, event, owner) {
				return event.Message
			}
		case change, open := <-pods.ResultChan():
			if !open {
				return ""
			}
			if pod, ok := change.Object.(*corev1.Pod); ok && change.Type != watch.Deleted {
				if reason := endedWithError(pod); reason != "" && k.belongsTo(ctx, namespace, pod, owner) {
					return reason
				}
			}
		}
	}
}

// watchAll watches objects, beginning with those that exist.
func watchAll(ctx context.Context, client rest.Interface, namespace, resource, fields string) (watch.Interface, error) {
	options := metav1.ListOptions{FieldSelector: fields, ResourceVersion: "0", Watch: true}
	return client.Get().Namespace(namespace).Resource(resource).VersionedParams(&options, metav1.ParameterCodec).Watch(ctx)
}

// isCurrent reports whether an event is about a present Pod of the owner.
func (k *kube) isCurrent(ctx context.Context, namespace string, event *corev1.Event, owner types.UID) bool {
	pod := &corev1.Pod{}
	if k.core.Get().Namespace(namespace).Resource("pods").Name(event.InvolvedObject.Name).Do(ctx).Into(pod) != nil {
		return false
	}
	return pod.UID == event.InvolvedObject.UID && k.belongsTo(ctx, namespace, pod, owner)
}

// belongsTo reports whether a Pod is that of the Sandbox with this uid, or of a Sandbox of the claim with this uid.
func (k *kube) belongsTo(ctx context.Context, namespace string, pod *corev1.Pod, owner types.UID) bool {
	for _, reference := range pod.OwnerReferences {
		if reference.Kind != "Sandbox" {
			continue
		}
		if reference.UID == owner {
			return true
		}
		found, err := k.sandbox(ctx, namespace, reference.Name)
		return err == nil && slices.ContainsFunc(found.OwnerReferences, func(own metav1.OwnerReference) bool { return own.UID == owner })
	}
	return false
}

// endedWithError describes how a container of the Pod ended, if one that is not ready ended with an error; else it is "".
func endedWithError(pod *corev1.Pod) string {
	for _, status := range pod.Status.ContainerStatuses {
		end := status.State.Terminated
		if end == nil {
			end = status.LastTerminationState.Terminated
		}
		switch {
		case status.Ready || end == nil || end.ExitCode == 0:
		case end.Reason == "OOMKilled":
			return "its command used more memory than the limit"
		case end.Message != "":
			return fmt.Sprintf("its command ended with exit code %d: %s", end.ExitCode, end.Message)
		default:
			return fmt.Sprintf("its command ended with exit code %d", end.ExitCode)
		}
	}
	return ""
}

// isRefused reports whether the API refuses the Pod for what its spec says.
func isRefused(condition *metav1.Condition) bool {
	return condition.Reason == "ReconcilerError" &&
		slices.ContainsFunc(refusals, func(words string) bool { return strings.Contains(condition.Message, words) })
}

// sandboxUID returns a function that reads the uid of a Sandbox.
func (k *kube) sandboxUID(namespace, name string) func(context.Context) (types.UID, error) {
	return func(ctx context.Context) (types.UID, error) {
		found, err := k.sandbox(ctx, namespace, name)
		if err != nil {
			return "", err
		}
		return found.UID, nil
	}
}
