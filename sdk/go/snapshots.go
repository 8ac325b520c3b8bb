package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	agents "github.com/agent-sandbox/agent-sandbox-rs/sdk/go/api/v1beta1"
)

const (
	snapshotAnnotation      = "agent-sandbox.github.io/snapshot"
	restoredAtAnnotation    = "agent-sandbox.github.io/restored-at"
	copiedVolumesAnnotation = "agent-sandbox.dev/copied-volumes"
	// forkSnapshotLife is the time after which the snapshot of a fork expires, beyond the fork's own waiting: the program may be killed.
	forkSnapshotLife = time.Hour
	// removalLimit is the timeout for removing what a failed call made.
	removalLimit = 30 * time.Second
)

// ownAnnotations are annotations of a Pod template that are the Sandbox's own, besides those of upstream's groups.
var ownAnnotations = []string{
	traceAnnotation, "agent-sandbox.github.io/idle-timeout", "agent-sandbox.github.io/idle-processes",
	"agent-sandbox.github.io/egress", "agent-sandbox.github.io/egress-of-claim",
}

// Snapshot is the files of a sandbox as they were at one moment.
type Snapshot struct {
	Name, Namespace string
	// Sandbox is the name of the sandbox that it was taken of.
	Sandbox string
	Labels  map[string]string
	// Ready tells whether sandboxes can be made from it; Message says why not.
	Ready   bool
	Message string
	// SizeBytes counts all layers, those that it shares with other snapshots included.
	SizeBytes int64
	// Frozen is how long the sandbox was frozen; 0 when it was suspended.
	Frozen time.Duration
	// Parent is the snapshot that the sandbox was made from or set back to, or "".
	Parent string
	// TakenAt and ExpiresAt are zero when the snapshot is not complete, and when it does not expire.
	TakenAt, ExpiresAt time.Time

	uid      types.UID
	reason   string
	deleting bool
	source   *snapshotSource
}

// snapshotSource is the Sandbox as it was.
type snapshotSource struct {
	PodTemplate          map[string]any    `json:"podTemplate"`
	VolumeClaimTemplates []any             `json:"volumeClaimTemplates"`
	Egress               map[string]string `json:"egress"`
}

// snapshotObject is the wire form of a SandboxSnapshot.
type snapshotObject struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		SandboxName string       `json:"sandboxName"`
		ExpiresAt   *metav1.Time `json:"expiresAt"`
	} `json:"spec"`
	Status struct {
		Conditions         []metav1.Condition `json:"conditions"`
		TakenAt            metav1.Time        `json:"takenAt"`
		SizeBytes          int64              `json:"sizeBytes"`
		FrozenMilliseconds int64              `json:"frozenMilliseconds"`
		Parent             string             `json:"parent"`
		Sandbox            *snapshotSource    `json:"sandbox"`
	} `json:"status"`
}

func (o *snapshotObject) snapshot() *Snapshot {
	found := &Snapshot{
		Name: o.Metadata.Name, Namespace: o.Metadata.Namespace, Labels: o.Metadata.Labels, Sandbox: o.Spec.SandboxName,
		SizeBytes: o.Status.SizeBytes, Frozen: time.Duration(o.Status.FrozenMilliseconds) * time.Millisecond, Parent: o.Status.Parent,
		TakenAt: o.Status.TakenAt.Time, uid: o.Metadata.UID, deleting: o.Metadata.DeletionTimestamp != nil, source: o.Status.Sandbox,
	}
	if o.Spec.ExpiresAt != nil {
		found.ExpiresAt = o.Spec.ExpiresAt.Time
	}
	for _, condition := range o.Status.Conditions {
		if condition.Type == "Ready" {
			found.Ready, found.reason, found.Message = condition.Status == metav1.ConditionTrue, condition.Reason, condition.Message
		}
	}
	return found
}

// failed returns whether the snapshot will never be complete.
func (s *Snapshot) failed() bool { return !s.Ready && s.reason != "" && s.reason != "Taking" }

// SnapshotOption configures a snapshot.
type SnapshotOption func(*snapshotOptions)

type snapshotOptions struct {
	name         string
	labels       map[string]string
	expiresAfter time.Duration
}

// SnapshotName sets the name of the snapshot, instead of a generated one.
func SnapshotName(name string) SnapshotOption { return func(o *snapshotOptions) { o.name = name } }

// SnapshotLabels are put on the snapshot.
func SnapshotLabels(labels map[string]string) SnapshotOption {
	return func(o *snapshotOptions) { o.labels = labels }
}

// SnapshotExpiresAfter schedules the deletion of the snapshot after that time.
func SnapshotExpiresAfter(time time.Duration) SnapshotOption {
	return func(o *snapshotOptions) { o.expiresAfter = time }
}

// Snapshot keeps the files of the sandbox as they are now and waits until that is done. A snapshot that cannot be taken gives
// ErrSnapshotFailed with the reason, and is deleted again.
func (s *Sandbox) Snapshot(ctx context.Context, configure ...SnapshotOption) (*Snapshot, error) {
	o := snapshotOptions{}
	for _, option := range configure {
		option(&o)
	}
	k := s.transport.kube
	spec := map[string]any{"sandboxName": s.Name}
	if o.expiresAfter > 0 {
		spec["expiresAt"] = metav1.NewTime(time.Now().Add(o.expiresAfter).UTC())
	}
	metadata := metav1.ObjectMeta{Name: o.name, Labels: o.labels}
	if o.name == "" {
		metadata.GenerateName = s.Name + "-"
	}
	body, err := json.Marshal(map[string]any{
		"apiVersion": snapshotVersion.String(), "kind": "SandboxSnapshot", "metadata": metadata, "spec": spec,
	})
	if err != nil {
		return nil, err
	}
	created, err := readSnapshot(k.snapshots.Post().Namespace(s.Namespace).Resource("sandboxsnapshots").
		SetHeader("Content-Type", runtime.ContentTypeJSON).Body(body).Do(ctx).Raw())
	if err != nil {
		return nil, apiError(fmt.Sprintf("create a snapshot of %q", s.Name), err)
	}
	taken, err := k.waitSnapshot(ctx, s.Namespace, created.Name)
	if err != nil {
		undo, done := context.WithTimeout(context.WithoutCancel(ctx), removalLimit)
		defer done()
		// The error of the snapshot says more than that of its removal.
		_ = k.deleteSnapshot(undo, s.Namespace, created.Name, created.uid)
		return nil, err
	}
	return taken, nil
}

// Fork makes sandboxes with the files that this one has now, and waits until all of them are ready. They have its image, command, environment
// and limits, but names, addresses and processes of their own. Of the options ClaimLabels, ExpiresAfter and ReadyTimeout apply.
func (s *Sandbox) Fork(ctx context.Context, count int, configure ...ClaimOption) ([]*Sandbox, error) {
	if count < 1 {
		return nil, fmt.Errorf("%d sandboxes cannot be made; the count must be at least 1", count)
	}
	o := s.client.newSandbox(s.Namespace, configure)
	ctx, cancel := context.WithTimeout(ctx, o.readyTimeout)
	defer cancel()
	taken, err := s.Snapshot(ctx, SnapshotExpiresAfter(o.readyTimeout+forkSnapshotLife))
	if err != nil {
		return nil, err
	}
	made, failures := make([]*Sandbox, count), make([]error, count)
	var all sync.WaitGroup
	for at := range count {
		all.Go(func() { made[at], failures[at] = s.client.createFrom(ctx, "sandbox-"+randomHex(4), taken, o) })
	}
	all.Wait()
	undo, done := context.WithTimeout(context.WithoutCancel(ctx), removalLimit)
	defer done()
	// The new sandboxes keep the layers. A snapshot that cannot be deleted expires.
	_ = s.transport.kube.deleteSnapshot(undo, s.Namespace, taken.Name, taken.uid)
	err = errors.Join(failures...)
	if err == nil {
		return made, nil
	}
	for _, fork := range made {
		if fork != nil {
			err = errors.Join(err, fork.Delete(undo))
		}
	}
	return nil, err
}

// Rollback sets the sandbox back to a snapshot and waits until it is ready again: what was written since is lost, and its processes end. It keeps
// its name and address. A suspended sandbox stays suspended.
func (s *Sandbox) Rollback(ctx context.Context, snapshot string) error {
	k := s.transport.kube
	wanted, err := k.usableSnapshot(ctx, s.Namespace, snapshot)
	if err != nil {
		return err
	}
	object, err := k.agents.Get().Namespace(s.Namespace).Resource("sandboxes").Name(s.Name).Do(ctx).Raw()
	if err != nil {
		return apiError(fmt.Sprintf("look up sandbox %q in namespace %q", s.Name, s.Namespace), err)
	}
	var found struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
		Spec     struct {
			OperatingMode string         `json:"operatingMode"`
			PodTemplate   map[string]any `json:"podTemplate"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(object, &found); err != nil {
		return err
	}
	if wanted.source != nil && !reflect.DeepEqual(wanted.source.PodTemplate["spec"], found.Spec.PodTemplate["spec"]) {
		return fmt.Errorf("snapshot %q was taken of a sandbox with another Pod template than %q; create a sandbox from it instead", snapshot, s.Name)
	}
	ran := found.Spec.OperatingMode != "Suspended"
	if ran {
		if err := s.Suspend(ctx); err != nil {
			return err
		}
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": found.Metadata.UID, "annotations": map[string]string{
		snapshotAnnotation: snapshot, restoredAtAnnotation: time.Now().UTC().Format("2006-01-02T15:04:05.000Z"),
	}}})
	if err != nil {
		return err
	}
	if err := k.patchSandbox(ctx, s.Namespace, s.Name, patch); err != nil || !ran {
		return err
	}
	return s.Resume(ctx)
}

// CreateFromSnapshot creates a sandbox with the files of a snapshot and waits until it is ready. An empty name means a generated one. Of the
// options InNamespace, ClaimLabels, ExpiresAfter and ReadyTimeout apply.
func (c *Client) CreateFromSnapshot(ctx context.Context, name, snapshot string, configure ...ClaimOption) (*Sandbox, error) {
	o := c.newSandbox(c.options.namespace, configure)
	if name == "" {
		name = "sandbox-" + randomHex(4)
	}
	ctx, cancel := context.WithTimeout(ctx, o.readyTimeout)
	defer cancel()
	found, err := c.kube.usableSnapshot(ctx, o.namespace, snapshot)
	if err != nil {
		return nil, err
	}
	return c.createFrom(ctx, name, found, o)
}

// Snapshots returns the snapshots in the client's namespace, the oldest first.
func (c *Client) Snapshots(ctx context.Context) ([]*Snapshot, error) {
	operation := fmt.Sprintf("list snapshots in namespace %q", c.options.namespace)
	content, err := c.kube.snapshots.Get().Namespace(c.options.namespace).Resource("sandboxsnapshots").Do(ctx).Raw()
	if err != nil {
		return nil, apiError(operation, err)
	}
	var list struct {
		Items []snapshotObject `json:"items"`
	}
	if err := json.Unmarshal(content, &list); err != nil {
		return nil, fmt.Errorf("%s: %w", operation, err)
	}
	slices.SortFunc(list.Items, func(one, other snapshotObject) int {
		if order := age(&one).Compare(age(&other)); order != 0 {
			return order
		}
		return strings.Compare(one.Metadata.Name, other.Metadata.Name)
	})
	found := make([]*Snapshot, len(list.Items))
	for at := range list.Items {
		found[at] = list.Items[at].snapshot()
	}
	return found, nil
}

func age(o *snapshotObject) time.Time {
	if o.Status.TakenAt.IsZero() {
		return o.Metadata.CreationTimestamp.Time
	}
	return o.Status.TakenAt.Time
}

// DeleteSnapshot deletes a snapshot of the client's namespace. The sandboxes that were made from it stay.
func (c *Client) DeleteSnapshot(ctx context.Context, name string) error {
	return c.kube.deleteSnapshot(ctx, c.options.namespace, name, "")
}

func (c *Client) newSandbox(namespace string, configure []ClaimOption) *claimOptions {
	o := &claimOptions{namespace: namespace, readyTimeout: 180 * time.Second}
	for _, option := range configure {
		option(o)
	}
	return o
}

// createFrom creates a sandbox from a snapshot in the snapshot's namespace and waits until it is ready. When that fails, it is deleted again.
func (c *Client) createFrom(ctx context.Context, name string, snapshot *Snapshot, o *claimOptions) (*Sandbox, error) {
	wanted, err := sandboxFrom(snapshot, name, o)
	if err != nil {
		return nil, err
	}
	body, err := json.Marshal(wanted)
	if err != nil {
		return nil, err
	}
	// The create request is completed even when ctx is cancelled meanwhile: only then can it be undone.
	creating, created := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	err = c.kube.agents.Post().Namespace(snapshot.Namespace).Resource("sandboxes").
		SetHeader("Content-Type", runtime.ContentTypeJSON).Body(body).Do(creating).Error()
	created()
	if err != nil {
		return nil, apiError(fmt.Sprintf("create sandbox %q in namespace %q", name, snapshot.Namespace), err)
	}
	box, err := c.handle(snapshot.Namespace, name, "")
	if err != nil {
		return nil, err
	}
	if err := box.waitReady(ctx); err != nil {
		undo, done := context.WithTimeout(context.WithoutCancel(ctx), removalLimit)
		defer done()
		return nil, errors.Join(err, box.Delete(undo))
	}
	return box, nil
}

// sandboxFrom returns a Sandbox to create from a snapshot: its files, and the template of the Sandbox that it was taken of.
func sandboxFrom(snapshot *Snapshot, name string, o *claimOptions) (map[string]any, error) {
	source := snapshot.source
	if source == nil {
		return nil, fmt.Errorf("snapshot %q is not complete: %w", snapshot.Name, ErrNotReady)
	}
	if len(source.VolumeClaimTemplates) > 0 {
		return nil, fmt.Errorf("the sandbox of snapshot %q has volumes of its own, whose files snapshots do not contain", snapshot.Name)
	}
	template := runtime.DeepCopyJSON(source.PodTemplate)
	for _, kind := range []string{"labels", "annotations"} {
		pairs, _, err := unstructured.NestedMap(template, "metadata", kind)
		if err != nil || len(pairs) == 0 {
			continue
		}
		for key := range pairs {
			if isReserved(key) {
				unstructured.RemoveNestedField(template, "metadata", kind, key)
			}
		}
		if _, copies := pairs[copiedVolumesAnnotation]; copies {
			return nil, fmt.Errorf("the sandbox of snapshot %q works on copies of folders of its node, which belong to it alone", snapshot.Name)
		}
	}
	annotations := map[string]string{snapshotAnnotation: snapshot.Name}
	for key, value := range source.Egress {
		annotations[key] = value
	}
	spec := map[string]any{"podTemplate": template}
	if o.expiresAfter > 0 {
		spec["shutdownTime"], spec["shutdownPolicy"] = metav1.NewTime(time.Now().Add(o.expiresAfter).UTC()), "Delete"
	}
	return map[string]any{
		"apiVersion": agents.GroupVersion.String(), "kind": "Sandbox",
		"metadata": map[string]any{"name": name, "labels": o.labels, "annotations": annotations}, "spec": spec,
	}, nil
}

// isReserved returns whether only controllers may put a label or annotation on Pods.
func isReserved(key string) bool {
	return strings.HasPrefix(key, "agents.x-k8s.io/") || strings.HasPrefix(key, "extensions.agents.x-k8s.io/") || slices.Contains(ownAnnotations, key)
}

func readSnapshot(content []byte, err error) (*Snapshot, error) {
	if err != nil {
		return nil, err
	}
	object := &snapshotObject{}
	if err := json.Unmarshal(content, object); err != nil {
		return nil, err
	}
	return object.snapshot(), nil
}

// usableSnapshot returns a snapshot that sandboxes can be made from.
func (k *kube) usableSnapshot(ctx context.Context, namespace, name string) (*Snapshot, error) {
	found, err := readSnapshot(k.snapshots.Get().Namespace(namespace).Resource("sandboxsnapshots").Name(name).Do(ctx).Raw())
	switch {
	case err != nil:
		return nil, apiError(fmt.Sprintf("look up snapshot %q in namespace %q", name, namespace), err)
	case found.deleting:
		return nil, fmt.Errorf("snapshot %q is being deleted: %w", name, ErrNotFound)
	case found.failed():
		return nil, fmt.Errorf("snapshot %q: %w: %s", name, ErrSnapshotFailed, found.Message)
	case !found.Ready:
		return nil, fmt.Errorf("snapshot %q is not complete: %w: %s", name, ErrNotReady, found.Message)
	}
	return found, nil
}

// deleteSnapshot deletes a snapshot, only that with the uid unless it is "".
func (k *kube) deleteSnapshot(ctx context.Context, namespace, name string, uid types.UID) error {
	body := &metav1.DeleteOptions{}
	if uid != "" {
		body.Preconditions = &metav1.Preconditions{UID: &uid}
	}
	err := k.snapshots.Delete().Namespace(namespace).Resource("sandboxsnapshots").Name(name).Body(body).Do(ctx).Error()
	return apiError(fmt.Sprintf("delete snapshot %q in namespace %q", name, namespace), err)
}

// waitSnapshot watches a snapshot until it is complete.
func (k *kube) waitSnapshot(ctx context.Context, namespace, name string) (*Snapshot, error) {
	last := "no node has looked at it yet"
	for {
		seconds := int64(290)
		options := metav1.ListOptions{FieldSelector: "metadata.name=" + name, ResourceVersion: "0", Watch: true, TimeoutSeconds: &seconds}
		changes, err := k.snapshots.Get().Namespace(namespace).Resource("sandboxsnapshots").
			VersionedParams(&options, metav1.ParameterCodec).Watch(ctx)
		if err == nil {
			found, err := followSnapshot(changes, name, &last)
			changes.Stop()
			if found != nil || err != nil {
				return found, err
			}
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("snapshot %q was not complete in time: %w: %s", name, ErrTimeout, last)
		case <-time.After(lookAgain):
		}
	}
}

func followSnapshot(changes watch.Interface, name string, last *string) (*Snapshot, error) {
	for change := range changes.ResultChan() {
		object, ok := change.Object.(*unstructured.Unstructured)
		if !ok {
			return nil, nil
		}
		if change.Type == watch.Deleted {
			return nil, fmt.Errorf("snapshot %q: %w", name, ErrSandboxDeleted)
		}
		found, err := readSnapshot(object.MarshalJSON())
		switch {
		case err != nil:
			return nil, err
		case found.Ready:
			return found, nil
		case found.failed():
			return nil, fmt.Errorf("snapshot %q: %w: %s: %s", name, ErrSnapshotFailed, found.reason, found.Message)
		case found.reason != "":
			*last = found.reason + ": " + found.Message
		}
	}
	return nil, nil
}
