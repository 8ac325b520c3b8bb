//! The decision for a Sandbox: a pure, total function of what was observed.

use std::{sync::Arc, time::Duration};

use agent_sandbox_api::{
    conditions::{self, ConditionType, Reason},
    keys::annotations,
    names,
    owners::{self, Ownership},
    template::ShutdownPolicy,
    v1beta1::{OperatingMode, SandboxStatus},
};
use jiff::Timestamp;

use super::{
    adoption::{self, Child},
    egress,
    pod::{adoption_patch, metadata_patch, new_pod},
    service::{ServicePlan, plan_service},
    sleep::{SleepChange, plan_sleep, until_suspension},
    volume::{VolumePlan, plan_volumes},
};
use crate::{
    api_client::{Propagation, Request},
    cache::{Cached, Key, Kind, Pod, Pvc, Sandbox, Service},
};

/// Maximum delay of a Pod's metadata, whatever the flag says: the router's name index waits for it.
const MAX_WRITE_BEHIND: Duration = Duration::from_secs(1);

/// Period of checks while a Pod of another owner has the name of a suspended Sandbox: its events do not wake the
/// Sandbox.
const FOREIGN_POD_RECHECK: Duration = Duration::from_secs(60);

/// Everything the decision may depend on, read once.
#[derive(Clone, Debug)]
pub struct Observed {
    pub sandbox: Arc<Sandbox>,
    /// Pods whose controller is this Sandbox, by name.
    pub owned_pods: Vec<Arc<Pod>>,
    /// The Pod with the tracked name, of any owner.
    pub tracked_pod: Option<Arc<Pod>>,
    /// The Pod with the Sandbox's own name, of any owner.
    pub named_pod: Option<Arc<Pod>>,
    /// The Service with the Sandbox's name, of any owner.
    pub service: Option<Arc<Service>>,
    /// The PVC of each volume claim template, if it exists.
    pub volumes: Vec<Option<Arc<Pvc>>>,
    /// The controlling claim or pool is gone, or is being deleted in the foreground.
    pub owner_gone: bool,
    /// The Sandbox was read live in this pass.
    pub confirmed: bool,
    /// An older Sandbox of the namespace whose name has the same hash.
    pub collides_with: Option<String>,
    /// Objects that exist but could not be read, about which nothing can be decided in this pass.
    pub unreadable: Unreadable,
    /// When a postponed Pod metadata patch was first due.
    pub patch_due_since: Option<Timestamp>,
    pub now: Timestamp,
}

/// The error for each kind of child that could not be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unreadable {
    pub pod: Option<String>,
    pub service: Option<String>,
    pub volume: Option<String>,
}

/// Settings of the Sandbox reconciler.
#[derive(Clone, Debug)]
pub struct Settings {
    pub cluster_domain: String,
    /// Maximum delay of a Pod metadata patch; zero: no delay.
    pub write_behind: Duration,
    /// How long the first status of a new Sandbox may be deferred while it would only report that its Pod was just
    /// created; zero: not at all. For engines where Pods start quickly, so that mostly one write reports everything.
    pub first_status_delay: Duration,
    /// Whether the nodes enforce egress rules by domain. Sandboxes with such rules are refused where they do not.
    pub enforces_egress: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            cluster_domain: "cluster.local".to_owned(),
            write_behind: Duration::ZERO,
            first_status_delay: Duration::ZERO,
            enforces_egress: false,
        }
    }
}

/// A request, and the prefix of its error in the Ready condition.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    pub request: Request,
    pub failure: &'static str,
}

impl Step {
    pub(super) fn new(request: Request, failure: &'static str) -> Self {
        Self { request, failure }
    }
}

/// A complete decision.
#[derive(Clone, Debug)]
pub enum Plan {
    /// The Sandbox is being deleted, or about to be: the garbage collector does the rest.
    Leave,
    /// Read the Sandbox live: its Pod was deleted, perhaps together with the Sandbox, and this cache may not have seen
    /// that yet.
    Confirm,
    /// The shutdown time has passed and the status does not report it yet. Nothing else is changed before it does.
    MarkExpired,
    /// Expired and reported: delete the children, then the Sandbox or its status.
    CleanUp(CleanUp),
    /// Suspend an idle Sandbox, or wake one that a request waits for; then plan again.
    Sleep(Box<SleepChange>),
    Reconcile(Box<Reconcile>),
}

#[derive(Clone, Debug, PartialEq)]
pub struct CleanUp {
    pub deletes: Vec<Step>,
    /// By policy `Delete`.
    pub delete_sandbox: Option<Step>,
}

#[derive(Clone, Debug)]
pub struct Reconcile {
    pub volumes: VolumePlan,
    pub pod: PodPlan,
    pub service: ServicePlan,
    pub pod_name: PodNamePlan,
    /// Start of the postponement to remember; `None` when nothing is postponed.
    pub patch_due_since: Option<Timestamp>,
    /// When to reconcile again without an event.
    pub requeue: Option<Duration>,
}

#[derive(Clone, Debug)]
pub enum PodPlan {
    /// No Pod is wanted and none exists.
    None,
    /// The Sandbox controls this many Pods, more than one: nothing is changed.
    Ambiguous(usize),
    Create(Step),
    /// The Pod exists; `patch` brings its metadata (and, at adoption, its owner) up to date.
    Use {
        pod: Arc<Pod>,
        patch: Option<Step>,
    },
    /// Suspending: delete it.
    Delete {
        pod: Arc<Pod>,
        step: Step,
    },
    /// Suspending: the Pod is terminating, or belongs to another owner.
    Await {
        pod: Arc<Pod>,
    },
    /// The Pod cannot be created or adopted; the error goes into the Ready condition.
    Refuse {
        error: String,
        foreign: bool,
    },
}

/// The change of the Sandbox's `pod-name` annotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodName {
    Leave,
    Set(String),
    Clear,
}

/// The change of the `pod-name` annotation for each outcome of the Pod's part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodNamePlan {
    pub if_succeeded: PodName,
    pub if_failed: PodName,
}

pub fn plan(observed: &Observed, settings: &Settings) -> Plan {
    let sandbox = &*observed.sandbox;
    if sandbox.is_deleting() || observed.owner_gone {
        return Plan::Leave;
    }
    if is_expired(sandbox, observed.now) {
        let marked = sandbox
            .condition(ConditionType::Ready)
            .is_some_and(|ready| ready.reason == Reason::SandboxExpired.as_str());
        return if marked { Plan::CleanUp(plan_clean_up(observed)) } else { Plan::MarkExpired };
    }
    if let Some(change) = plan_sleep(sandbox, observed.now) {
        return Plan::Sleep(Box::new(change));
    }
    let pod = plan_pod(observed, settings);
    // The garbage collector deletes an owner before its dependents, but two watches may show that in the opposite
    // order.
    let had_one = sandbox.annotation(annotations::POD_NAME).is_some_and(|name| !name.is_empty());
    if matches!(pod, PodPlan::Create(_)) && had_one && !observed.confirmed {
        return Plan::Confirm;
    }
    let service = match (&pod, &observed.collides_with) {
        _ if observed.unreadable.service.is_some() => {
            ServicePlan::Refuse(observed.unreadable.service.clone().unwrap_or_default())
        }
        (PodPlan::Ambiguous(_), _) => ServicePlan::Skip,
        // Its selector would match the other Sandbox's Pod.
        (_, Some(_)) if observed.service.is_none() => ServicePlan::Skip,
        _ => plan_service(sandbox, observed.service.as_deref()),
    };
    let volumes = match &observed.unreadable.volume {
        Some(error) => VolumePlan { steps: Vec::new(), refusal: Some(error.clone()) },
        None => plan_volumes(sandbox, &observed.volumes),
    };
    let pod_name = PodNamePlan {
        if_succeeded: pod_name_after(observed, &pod, true),
        if_failed: pod_name_after(observed, &pod, false),
    };
    let recheck =
        matches!(&pod, PodPlan::Await { pod } if owners::ownership(&pod.metadata, sandbox.uid()) != Ownership::Owned)
            .then_some(FOREIGN_POD_RECHECK);
    let requeue = until_deadline(sandbox, observed.now).into_iter().chain(recheck).min();
    let mut plan = Reconcile { volumes, pod, service, pod_name, patch_due_since: None, requeue };
    postpone_patch(&mut plan, observed, settings);
    Plan::Reconcile(Box::new(plan))
}

/// Whether the shutdown time is reached; at exactly that time the Sandbox is expired. For some it is when their Pod has
/// finished.
pub fn is_expired(sandbox: &Sandbox, now: Timestamp) -> bool {
    sandbox.spec.shutdown_time.as_ref().is_some_and(|shutdown| now >= shutdown.0)
        || sandbox.status.as_ref().is_some_and(|status| ends_with(sandbox, status))
}

/// Whether the shutdown time of the Sandbox is when its Pod has finished, and the status says that it has.
pub fn ends_with(sandbox: &Sandbox, status: &SandboxStatus) -> bool {
    let finished = status.conditions.as_deref().and_then(|list| conditions::find(list, ConditionType::Finished));
    sandbox.annotation(annotations::SHUTDOWN_WHEN_FINISHED) == Some("true") && conditions::is_true(finished)
}

/// Time left to the shutdown time, if one is set.
pub fn until_shutdown(sandbox: &Sandbox, now: Timestamp) -> Option<Duration> {
    let shutdown = sandbox.spec.shutdown_time.as_ref()?.0;
    Some(Duration::try_from(shutdown.duration_since(now)).unwrap_or(Duration::ZERO))
}

/// Time left until the Sandbox ends or is suspended, whichever comes first.
pub fn until_deadline(sandbox: &Sandbox, now: Timestamp) -> Option<Duration> {
    until_shutdown(sandbox, now).into_iter().chain(until_suspension(sandbox, now)).min()
}

/// The Pod name from the Sandbox's annotation, else the Sandbox's own name.
pub fn tracked_name(sandbox: &Sandbox) -> &str {
    sandbox.annotation(annotations::POD_NAME).filter(|name| !name.is_empty()).unwrap_or(sandbox.name())
}

fn plan_clean_up(observed: &Observed) -> CleanUp {
    let sandbox = &*observed.sandbox;
    let pods = observed.owned_pods.iter().filter(|pod| !pod.is_deleting());
    let mut deletes: Vec<Step> =
        pods.map(|pod| Step::new(Request::delete(&**pod, None), "failed to delete pod: ")).collect();
    if let Some(service) = observed
        .service
        .as_deref()
        .filter(|service| owners::ownership(&service.metadata, sandbox.uid()) == Ownership::Owned)
    {
        deletes.push(Step::new(Request::delete(service, None), "failed to delete service: "));
    }
    let delete_sandbox = (sandbox.spec.shutdown_policy == Some(ShutdownPolicy::Delete))
        .then(|| Step::new(Request::delete(sandbox, Some(Propagation::Background)), "failed to delete sandbox: "));
    CleanUp { deletes, delete_sandbox }
}

fn plan_pod(observed: &Observed, settings: &Settings) -> PodPlan {
    let sandbox = &*observed.sandbox;
    if let Some(error) = &observed.unreadable.pod {
        return PodPlan::Refuse { error: error.clone(), foreign: false };
    }
    if sandbox.operating_mode() == OperatingMode::Running
        && let Some(error) = egress::refusal(sandbox, settings.enforces_egress)
    {
        return PodPlan::Refuse { error, foreign: false };
    }
    match observed.owned_pods.as_slice() {
        [] => {}
        // The owner reference takes precedence over the annotation.
        [pod] => return plan_owned_pod(sandbox, pod),
        pods => return PodPlan::Ambiguous(pods.len()),
    }
    let found = observed.tracked_pod.as_ref().or(observed.named_pod.as_ref());
    if sandbox.operating_mode() == OperatingMode::Suspended {
        return match found {
            Some(pod) => PodPlan::Await { pod: pod.clone() },
            None => PodPlan::None,
        };
    }
    if let Some(older) = &observed.collides_with {
        return PodPlan::Refuse {
            error: format!(
                "the name \"{}\" has the same hash ({}) as the older sandbox \"{older}\" of this namespace; choose another name",
                sandbox.name(),
                names::name_hash(sandbox.name())
            ),
            foreign: false,
        };
    }
    let Some(pod) = found else {
        let key = Key::new(sandbox.namespace(), sandbox.name());
        return PodPlan::Create(Step::new(Request::create(Kind::Pod, key, new_pod(sandbox)), ""));
    };
    if owners::ownership(&pod.metadata, sandbox.uid()) == Ownership::Foreign {
        return PodPlan::Refuse { error: adoption::foreign_owner_error(Child::Pod, &**pod, sandbox), foreign: true };
    }
    match adoption::check_adoptable(Child::Pod, &**pod, sandbox) {
        Ok(()) => {
            let step = Step::new(Request::patch_exact(&**pod, adoption_patch(sandbox, pod)), "failed to patch pod: ");
            PodPlan::Use { pod: pod.clone(), patch: Some(step) }
        }
        Err(error) => PodPlan::Refuse { error, foreign: false },
    }
}

fn plan_owned_pod(sandbox: &Sandbox, pod: &Arc<Pod>) -> PodPlan {
    match (sandbox.operating_mode(), pod.is_deleting()) {
        (OperatingMode::Suspended, true) => PodPlan::Await { pod: pod.clone() },
        (OperatingMode::Suspended, false) => PodPlan::Delete {
            pod: pod.clone(),
            step: Step::new(Request::delete(&**pod, None), "failed to delete pod: "),
        },
        (OperatingMode::Running, _) => {
            let patch = metadata_patch(sandbox, pod)
                .map(|patch| Step::new(Request::patch(&**pod, patch), "failed to patch pod: "));
            PodPlan::Use { pod: pod.clone(), patch }
        }
    }
}

/// Removes the metadata patch of an owned Pod from the plan while its write-behind window is open.
fn postpone_patch(plan: &mut Reconcile, observed: &Observed, settings: &Settings) {
    let window = settings.write_behind.min(MAX_WRITE_BEHIND);
    let owned = observed.owned_pods.len() == 1;
    let PodPlan::Use { patch: patch @ Some(_), .. } = &mut plan.pod else { return };
    if window.is_zero() || !owned {
        return;
    }
    let since = observed.patch_due_since.unwrap_or(observed.now);
    let waited = Duration::try_from(observed.now.duration_since(since)).unwrap_or(Duration::ZERO);
    if let Some(left) = window.checked_sub(waited).filter(|left| !left.is_zero()) {
        *patch = None;
        plan.patch_due_since = Some(since);
        plan.requeue = Some(plan.requeue.map_or(left, |requeue| requeue.min(left)));
    }
}

/// The change of the annotation that follows from the outcome of the Pod step.
fn pod_name_after(observed: &Observed, plan: &PodPlan, succeeded: bool) -> PodName {
    let sandbox = &*observed.sandbox;
    let current = sandbox.annotation(annotations::POD_NAME);
    let clear = || if current.is_some() { PodName::Clear } else { PodName::Leave };
    let set = |name: &str| if current == Some(name) { PodName::Leave } else { PodName::Set(name.to_owned()) };
    match plan {
        PodPlan::Ambiguous(_) | PodPlan::Delete { .. } => PodName::Leave,
        PodPlan::None => clear(),
        PodPlan::Await { pod } if owners::ownership(&pod.metadata, sandbox.uid()) == Ownership::Owned => PodName::Leave,
        PodPlan::Await { .. } | PodPlan::Refuse { foreign: true, .. } => clear(),
        PodPlan::Refuse { .. } => PodName::Leave,
        PodPlan::Create(_) if succeeded => set(sandbox.name()),
        PodPlan::Use { pod, .. } if succeeded => set(&pod.key().name),
        // The annotation names a Pod that does not exist.
        PodPlan::Create(_) if current.is_some_and(|name| name != sandbox.name()) => PodName::Clear,
        PodPlan::Create(_) | PodPlan::Use { .. } => PodName::Leave,
    }
}
