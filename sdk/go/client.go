package sandbox

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	extalpha "github.com/agent-sandbox/agent-sandbox-rs/sdk/go/api/extensions/v1alpha1"
	extensions "github.com/agent-sandbox/agent-sandbox-rs/sdk/go/api/extensions/v1beta1"
	agents "github.com/agent-sandbox/agent-sandbox-rs/sdk/go/api/v1beta1"
)

// Client creates, finds and deletes sandboxes. It is safe for use by several goroutines.
type Client struct {
	kube    *kube
	options options
}

// NewClient chooses a cluster without sending a request to it.
func NewClient(ctx context.Context, configure ...Option) (*Client, error) {
	o := options{port: 8888, perAttempt: time.Minute, connection: connection{kind: "tunnel"}}
	for _, option := range configure {
		option(&o)
	}
	config, namespace, err := cluster(ctx, &o)
	if err != nil {
		return nil, err
	}
	if o.namespace == "" {
		o.namespace = namespace
	}
	if o.namespace == "" {
		o.namespace = "default"
	}
	k, err := newKube(config)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoCluster, err)
	}
	return &Client{kube: k, options: o}, nil
}

// Claim takes a sandbox from a warm pool of that name, else creates one from a template of that name, and waits until it is ready. When that
// fails, or ctx ends, a claim with a generated name is deleted again.
func (c *Client) Claim(ctx context.Context, source string, configure ...ClaimOption) (*Sandbox, error) {
	o := claimOptions{namespace: c.options.namespace, readyTimeout: 180 * time.Second}
	for _, option := range configure {
		option(&o)
	}
	ctx, cancel := context.WithTimeout(ctx, o.readyTimeout)
	defer cancel()
	template, err := c.resolve(ctx, o.namespace, source, o.template)
	if err != nil {
		return nil, err
	}
	// The create request is completed even when ctx is cancelled meanwhile: only then can it be undone.
	creating, created := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	name, uid, version, err := c.create(creating, source, template, &o)
	created()
	if err != nil {
		return nil, err
	}
	var claim *extensions.SandboxClaim
	owner := func(context.Context) (types.UID, error) { return uid, nil }
	err = c.kube.untilFailure(ctx, o.namespace, name, owner, func(ctx context.Context) error {
		ready, err := c.kube.waitClaim(ctx, o.namespace, name, uid, version)
		claim = ready
		return err
	})
	if err != nil {
		if o.name == "" {
			undo, done := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
			defer done()
			err = errors.Join(err, c.kube.deleteClaim(undo, o.namespace, name, uid))
		}
		return nil, err
	}
	return c.handle(o.namespace, claim.Status.Sandbox.Name, name)
}

// resolve reports whether the name is that of a template; a pool takes precedence unless the caller asks for a template.
func (c *Client) resolve(ctx context.Context, namespace, name string, template bool) (bool, error) {
	if template {
		return true, nil
	}
	for _, resource := range []string{"sandboxwarmpools", "sandboxtemplates"} {
		there, err := c.kube.exists(ctx, namespace, resource, name)
		if err != nil {
			return false, err
		}
		if there {
			return resource == "sandboxtemplates", nil
		}
	}
	return false, fmt.Errorf("%q in namespace %q is %w; create one of them or check the namespace", name, namespace, ErrNoSource)
}

func (c *Client) create(ctx context.Context, source string, template bool, o *claimOptions) (string, types.UID, string, error) {
	labels := map[string]string{}
	for key, value := range o.labels {
		labels[key] = value
	}
	labels[createdByLabel] = "go-client"
	annotations := map[string]string{requestedAt: time.Now().UTC().Format(time.RFC3339Nano)}
	if parent := traceparent(ctx); parent != "" {
		carrier, _ := json.Marshal(map[string]string{"traceparent": parent})
		annotations[traceAnnotation] = string(carrier)
	}
	metadata := metav1.ObjectMeta{Name: o.name, Namespace: o.namespace, Labels: labels, Annotations: annotations}
	if o.name == "" {
		metadata.GenerateName = "sandbox-claim-"
	}
	operation := fmt.Sprintf("create a claim on %q in namespace %q", source, o.namespace)
	if template {
		spec := map[string]any{"sandboxTemplateRef": map[string]string{"name": source}}
		return c.post(ctx, operation, o, metadata, spec, true)
	}
	return c.post(ctx, operation, o, metadata, map[string]any{"warmPoolRef": map[string]string{"name": source}}, false)
}

// post creates the claim, in the API version that can refer to its source.
func (c *Client) post(ctx context.Context, operation string, o *claimOptions, metadata metav1.ObjectMeta, spec map[string]any, alpha bool) (string, types.UID, string, error) {
	if o.expiresAfter > 0 {
		spec["lifecycle"] = map[string]string{
			"shutdownTime": time.Now().Add(o.expiresAfter).UTC().Format("2006-01-02T15:04:05Z"), "shutdownPolicy": "Delete",
		}
	}
	var env []map[string]string
	for name, value := range o.env {
		env = append(env, map[string]string{"name": name, "value": value})
	}
	if env != nil {
		spec["env"] = env
	}
	if len(o.podLabels)+len(o.podAnnotations) > 0 {
		spec["additionalPodMetadata"] = map[string]any{"labels": o.podLabels, "annotations": o.podAnnotations}
	}
	raw, err := json.Marshal(map[string]any{"metadata": metadata, "spec": spec})
	if err != nil {
		return "", "", "", err
	}
	if alpha {
		claim := &extalpha.SandboxClaim{}
		if err := json.Unmarshal(raw, claim); err != nil {
			return "", "", "", err
		}
		err := c.kube.alpha.Post().Namespace(o.namespace).Resource("sandboxclaims").Body(claim).Do(ctx).Into(claim)
		return claim.Name, claim.UID, claim.ResourceVersion, apiError(operation, err)
	}
	claim := &extensions.SandboxClaim{}
	if err := json.Unmarshal(raw, claim); err != nil {
		return "", "", "", err
	}
	err = c.kube.extensions.Post().Namespace(o.namespace).Resource("sandboxclaims").Body(claim).Do(ctx).Into(claim)
	return claim.Name, claim.UID, claim.ResourceVersion, apiError(operation, err)
}

// CreateFromImage creates a sandbox from an image and waits until it is ready. An empty name means a generated one.
func (c *Client) CreateFromImage(ctx context.Context, name, image string, configure ...ClaimOption) (*Sandbox, error) {
	o := claimOptions{namespace: c.options.namespace, readyTimeout: 180 * time.Second}
	for _, option := range configure {
		option(&o)
	}
	if name == "" {
		name = "sandbox-" + randomHex(4)
	}
	ctx, cancel := context.WithTimeout(ctx, o.readyTimeout)
	defer cancel()
	container := corev1.Container{
		Name: "sandbox", Image: image, Ports: []corev1.ContainerPort{{ContainerPort: int32(c.options.port)}},
	}
	for key, value := range o.env {
		container.Env = append(container.Env, corev1.EnvVar{Name: key, Value: value})
	}
	wanted := &agents.Sandbox{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: o.namespace, Labels: o.labels}}
	wanted.Spec.PodTemplate.Metadata = &agents.SandboxSpecPodTemplateMetadata{
		Labels: o.podLabels, Annotations: map[string]string{injectSandboxd: "true"},
	}
	wanted.Spec.PodTemplate.Spec = corev1.PodSpec{Containers: []corev1.Container{container}, RestartPolicy: corev1.RestartPolicyOnFailure}
	if o.expiresAfter > 0 {
		end := metav1.NewTime(time.Now().Add(o.expiresAfter))
		wanted.Spec.ShutdownTime, wanted.Spec.ShutdownPolicy = &end, "Delete"
	}
	operation := fmt.Sprintf("create sandbox %q in namespace %q", name, o.namespace)
	if err := c.kube.agents.Post().Namespace(o.namespace).Resource("sandboxes").Body(wanted).Do(ctx).Into(wanted); err != nil {
		return nil, apiError(operation, err)
	}
	box, err := c.handle(o.namespace, name, "")
	if err != nil {
		return nil, err
	}
	if err := box.waitReady(ctx); err != nil {
		undo, done := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer done()
		return nil, errors.Join(err, box.Delete(undo))
	}
	return box, nil
}

// Get returns a sandbox by its claim's name or its own.
func (c *Client) Get(ctx context.Context, name string) (*Sandbox, error) {
	claim, err := c.kube.claim(ctx, c.options.namespace, name)
	switch {
	case err == nil && (claim.Status.Sandbox == nil || claim.Status.Sandbox.Name == ""):
		return nil, fmt.Errorf("claim %q has no sandbox yet: %w", name, ErrNotReady)
	case err == nil:
		return c.handle(c.options.namespace, claim.Status.Sandbox.Name, name)
	case !errors.Is(err, ErrNotFound):
		return nil, err
	}
	if _, err := c.kube.sandbox(ctx, c.options.namespace, name); err != nil {
		return nil, err
	}
	return c.handle(c.options.namespace, name, "")
}

// List returns the claims in the client's namespace; an empty selector selects all.
func (c *Client) List(ctx context.Context, selector string) (*extensions.SandboxClaimList, error) {
	list := &extensions.SandboxClaimList{}
	options := metav1.ListOptions{LabelSelector: selector}
	err := c.kube.extensions.Get().Namespace(c.options.namespace).Resource("sandboxclaims").
		VersionedParams(&options, metav1.ParameterCodec).Do(ctx).Into(list)
	return list, apiError("list claims", err)
}

// Sandboxes returns all Sandboxes in the client's namespace.
func (c *Client) Sandboxes(ctx context.Context) (*agents.SandboxList, error) {
	list := &agents.SandboxList{}
	err := c.kube.agents.Get().Namespace(c.options.namespace).Resource("sandboxes").Do(ctx).Into(list)
	return list, apiError("list sandboxes", err)
}

// CreatePool creates a template with one container and a warm pool of the same name.
func (c *Client) CreatePool(ctx context.Context, name, image string, replicas int32) error {
	template := &extensions.SandboxTemplate{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: c.options.namespace}}
	template.Spec.PodTemplate.Metadata = &extensions.SandboxTemplateSpecPodTemplateMetadata{Annotations: map[string]string{injectSandboxd: "true"}}
	template.Spec.PodTemplate.Spec = corev1.PodSpec{Containers: []corev1.Container{{Name: "sandbox", Image: image}}, RestartPolicy: corev1.RestartPolicyOnFailure}
	operation := fmt.Sprintf("create %q in namespace %q", name, c.options.namespace)
	err := c.kube.extensions.Post().Namespace(c.options.namespace).Resource("sandboxtemplates").Body(template).Do(ctx).Error()
	if err != nil {
		return apiError(operation, err)
	}
	pool := &extensions.SandboxWarmPool{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: c.options.namespace}}
	raw, _ := json.Marshal(map[string]any{"replicas": replicas, "sandboxTemplateRef": map[string]string{"name": name}})
	if err := json.Unmarshal(raw, &pool.Spec); err != nil {
		return err
	}
	return apiError(operation, c.kube.extensions.Post().Namespace(c.options.namespace).Resource("sandboxwarmpools").Body(pool).Do(ctx).Error())
}

// DeletePool deletes a warm pool and the template of the same name; objects that do not exist are ignored.
func (c *Client) DeletePool(ctx context.Context, name string) error {
	for _, resource := range []string{"sandboxwarmpools", "sandboxtemplates"} {
		err := c.kube.extensions.Delete().Namespace(c.options.namespace).Resource(resource).Name(name).Do(ctx).Error()
		if err != nil && !apierrors.IsNotFound(err) {
			return apiError(fmt.Sprintf("delete %q", name), err)
		}
	}
	return nil
}

func (c *Client) handle(namespace, name, claim string) (*Sandbox, error) {
	t, err := newTransport(c.kube, name, namespace, &c.options)
	if err != nil {
		return nil, err
	}
	return &Sandbox{Name: name, Namespace: namespace, Claim: claim, client: c, transport: t}, nil
}

func randomHex(bytes int) string {
	random := make([]byte, bytes)
	rand.Read(random)
	return fmt.Sprintf("%x", random)
}
