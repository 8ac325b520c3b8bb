package sandbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	extalpha "github.com/agent-sandbox/agent-sandbox-rs/sdk/go/api/extensions/v1alpha1"
	extensions "github.com/agent-sandbox/agent-sandbox-rs/sdk/go/api/extensions/v1beta1"
	agents "github.com/agent-sandbox/agent-sandbox-rs/sdk/go/api/v1beta1"
)

const (
	podNameAnnotation = "agents.x-k8s.io/pod-name"
	createdByLabel    = "agents.x-k8s.io/created-by"
	requestedAt       = "agents.x-k8s.io/client-first-requested-at"
	traceAnnotation   = "opentelemetry.io/trace-context"
	injectSandboxd    = "runtime.agents.x-k8s.io/inject-sandboxd"
)

// terminal are the reasons of Ready=False that are permanent.
var terminal = map[string]bool{
	"TemplateNotFound": true, "WarmPoolNotFound": true, "InvalidMetadata": true, "EnvVarsInjectionRejected": true,
	"VolumeClaimTemplatesError": true, "ClaimExpired": true, "SandboxExpired": true, "InvalidConfiguration": true,
	"PodFailed": true, "PodSucceeded": true,
}

// snapshotVersion is the API version of SandboxSnapshots, a kind of our own group.
var snapshotVersion = schema.GroupVersion{Group: "agent-sandbox.github.io", Version: "v1alpha1"}

// kube accesses the Kubernetes API: one REST client per group and version.
type kube struct {
	config                          *rest.Config
	core, agents, extensions, alpha rest.Interface
	gateways, snapshots             rest.Interface
}

func newKube(config *rest.Config) (*kube, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, agents.AddToScheme, extensions.AddToScheme, extalpha.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	gateway := schema.GroupVersion{Group: "gateway.networking.k8s.io", Version: "v1"}
	scheme.AddKnownTypeWithName(gateway.WithKind("Gateway"), &unstructured.Unstructured{})
	scheme.AddKnownTypeWithName(gateway.WithKind("GatewayList"), &unstructured.UnstructuredList{})
	metav1.AddToGroupVersion(scheme, gateway)
	scheme.AddKnownTypeWithName(snapshotVersion.WithKind("SandboxSnapshot"), &unstructured.Unstructured{})
	metav1.AddToGroupVersion(scheme, snapshotVersion)
	codecs := serializer.NewCodecFactory(scheme).WithoutConversion()
	k := &kube{config: config}
	for _, one := range []struct {
		into    *rest.Interface
		path    string
		version schema.GroupVersion
	}{
		{&k.core, "/api", corev1.SchemeGroupVersion},
		{&k.agents, "/apis", agents.GroupVersion},
		{&k.extensions, "/apis", extensions.GroupVersion},
		{&k.alpha, "/apis", extalpha.GroupVersion},
		{&k.gateways, "/apis", gateway},
		{&k.snapshots, "/apis", snapshotVersion},
	} {
		copied := rest.CopyConfig(config)
		copied.GroupVersion, copied.APIPath, copied.NegotiatedSerializer = &one.version, one.path, codecs
		copied.ContentType = runtime.ContentTypeJSON
		if copied.QPS == 0 {
			copied.QPS, copied.Burst = -1, 0
		}
		client, err := rest.RESTClientFor(copied)
		if err != nil {
			return nil, err
		}
		*one.into = client
	}
	return k, nil
}

func apiError(operation string, err error) error {
	switch {
	case err == nil:
		return nil
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%s: %w: %w", operation, ErrNotFound, err)
	case apierrors.IsAlreadyExists(err):
		return fmt.Errorf("%s: %w: choose another name or delete it first: %w", operation, ErrAlreadyExists, err)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("%s: the cluster does not accept these credentials, renew them: %w", operation, err)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s: %w: %w", operation, ErrTimeout, err)
	}
	return fmt.Errorf("%s: %w", operation, err)
}

func (k *kube) sandbox(ctx context.Context, namespace, name string) (*agents.Sandbox, error) {
	found := &agents.Sandbox{}
	err := k.agents.Get().Namespace(namespace).Resource("sandboxes").Name(name).Do(ctx).Into(found)
	return found, apiError(fmt.Sprintf("look up sandbox %q in namespace %q", name, namespace), err)
}

func (k *kube) claim(ctx context.Context, namespace, name string) (*extensions.SandboxClaim, error) {
	found := &extensions.SandboxClaim{}
	err := k.extensions.Get().Namespace(namespace).Resource("sandboxclaims").Name(name).Do(ctx).Into(found)
	return found, apiError(fmt.Sprintf("look up claim %q in namespace %q", name, namespace), err)
}

func (k *kube) exists(ctx context.Context, namespace, resource, name string) (bool, error) {
	err := k.extensions.Get().Namespace(namespace).Resource(resource).Name(name).Do(ctx).Error()
	switch {
	case err == nil, apierrors.IsForbidden(err):
		// A client without permission to read gets true; the claim's own status reports the error later.
		return true, nil
	case apierrors.IsNotFound(err):
		return false, nil
	}
	return false, apiError(fmt.Sprintf("look for %q in namespace %q", name, namespace), err)
}

func (k *kube) deleteClaim(ctx context.Context, namespace, name string, uid types.UID) error {
	body := &metav1.DeleteOptions{}
	if uid != "" {
		body.Preconditions = &metav1.Preconditions{UID: &uid}
	}
	err := k.extensions.Delete().Namespace(namespace).Resource("sandboxclaims").Name(name).Body(body).Do(ctx).Error()
	if apierrors.IsNotFound(err) {
		return nil
	}
	return apiError(fmt.Sprintf("delete claim %q in namespace %q", name, namespace), err)
}

// waitClaim watches a claim from its version on until it is ready and names its sandbox.
func (k *kube) waitClaim(ctx context.Context, namespace, name string, uid types.UID, version string) (*extensions.SandboxClaim, error) {
	last := "no controller has looked at it yet"
	late := func() error {
		return fmt.Errorf("claim %q was not ready in time: %w: %s", name, ErrTimeout, last)
	}
	for {
		seconds := int64(290)
		options := metav1.ListOptions{
			FieldSelector: "metadata.name=" + name, ResourceVersion: version, Watch: true, TimeoutSeconds: &seconds,
		}
		changes, err := k.extensions.Get().Namespace(namespace).Resource("sandboxclaims").
			VersionedParams(&options, metav1.ParameterCodec).Watch(ctx)
		switch {
		case ctx.Err() != nil:
			return nil, late()
		case apierrors.IsResourceExpired(err) || apierrors.IsGone(err):
			version = "0"
			continue
		case apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err):
			return nil, apiError(fmt.Sprintf("wait for claim %q", name), err)
		case err != nil:
			last = err.Error()
		default:
			claim, err := followClaim(changes, name, uid, &version, &last)
			changes.Stop()
			if claim != nil || err != nil {
				return claim, err
			}
			if ctx.Err() != nil {
				return nil, late()
			}
			if _, err := k.claim(ctx, namespace, name); errors.Is(err, ErrNotFound) {
				return nil, fmt.Errorf("claim %q: %w", name, ErrSandboxDeleted)
			}
		}
		select {
		case <-ctx.Done():
			return nil, late()
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func followClaim(changes watch.Interface, name string, uid types.UID, version, last *string) (*extensions.SandboxClaim, error) {
	for change := range changes.ResultChan() {
		if change.Type == watch.Deleted {
			return nil, fmt.Errorf("claim %q: %w", name, ErrSandboxDeleted)
		}
		claim, ok := change.Object.(*extensions.SandboxClaim)
		if !ok {
			if status, ok := change.Object.(*metav1.Status); ok && status.Code == 410 {
				*version = "0"
			}
			return nil, nil
		}
		if uid != "" && claim.UID != uid {
			return nil, fmt.Errorf("claim %q: %w", name, ErrSandboxDeleted)
		}
		*version = claim.ResourceVersion
		done, err := lookAt(name, claim.Status.Conditions, last)
		if err != nil {
			return nil, err
		}
		if done && claim.Status.Sandbox != nil && claim.Status.Sandbox.Name != "" {
			return claim, nil
		}
	}
	return nil, nil
}

// lookAt reports whether Ready is true, and returns an error when it can never become true.
func lookAt(name string, conditions []metav1.Condition, last *string) (bool, error) {
	for _, condition := range conditions {
		final := terminal[condition.Reason] || isRefused(&condition)
		if condition.Reason == "WarmPoolNotFound" || (condition.Type == "Ready" && condition.Status == metav1.ConditionFalse && final) {
			return false, fmt.Errorf("%q cannot become ready: %w: %s: %s", name, ErrClaimFailed, condition.Reason, condition.Message)
		}
		if condition.Type == "Ready" {
			*last = condition.Reason + ": " + condition.Message
			return condition.Status == metav1.ConditionTrue, nil
		}
	}
	return false, nil
}

// waitSandbox watches a Sandbox until done returns true.
func (k *kube) waitSandbox(ctx context.Context, namespace, name, wanted string, done func(*agents.Sandbox) (bool, error)) error {
	for {
		seconds := int64(290)
		options := metav1.ListOptions{FieldSelector: "metadata.name=" + name, ResourceVersion: "0", Watch: true, TimeoutSeconds: &seconds}
		changes, err := k.agents.Get().Namespace(namespace).Resource("sandboxes").
			VersionedParams(&options, metav1.ParameterCodec).Watch(ctx)
		if err == nil {
			for change := range changes.ResultChan() {
				if change.Type == watch.Deleted {
					changes.Stop()
					return fmt.Errorf("sandbox %q: %w", name, ErrSandboxDeleted)
				}
				if found, ok := change.Object.(*agents.Sandbox); ok {
					finished, err := done(found)
					if finished || err != nil {
						changes.Stop()
						return err
					}
				}
			}
			changes.Stop()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("sandbox %q was not %s in time: %w", name, wanted, ErrTimeout)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func (k *kube) patchSandbox(ctx context.Context, namespace, name string, patch []byte) error {
	err := k.agents.Patch(types.MergePatchType).Namespace(namespace).Resource("sandboxes").Name(name).Body(patch).Do(ctx).Error()
	return apiError(fmt.Sprintf("change sandbox %q", name), err)
}
