//! What to do about a Sandbox: a pure, total function of what was observed.

use std::{sync::Arc, time::Duration};

use agent_sandbox_api::{
    conditions::{ConditionType, Reason},
    keys::annotations,
    names,
    owners::{self, Ownership},
    template::ShutdownPolicy,
    v1beta1::OperatingMode,
};
use jiff::Timestamp;

use super::{
    adoption::{self, Child},
    pod::{adoption_patch, metadata_patch, new_pod},
    service::{ServicePlan, plan_service},
    volume::{VolumePlan, plan_volumes},
};
use crate::{
    object::{Cached, Key, Kind, Pod, Pvc, Sandbox, Service},
    request::{Propagation, Request},
};

/// The longest time a Pod's metadata may lag, whatever the flag says: the router's name index waits for it.
const MAX_WRITE_BEHIND: Duration = Duration::from_secs(1);

/// Everything the decision may depend on, read once.
#[derive(Clone, Debug)]
pub struct Observed {
    pub sandbox: Arc<Sandbox>,
    /// Pods whose controller is this Sandbox, by name.
    pub owned_pods: Vec<Arc<Pod>>,
    /// The Pod under the tracked name, whoever owns it.
    pub tracked_pod: Option<Arc<Pod>>,
    /// The Pod under the Sandbox's own name, whoever owns it.
    pub named_pod: Option<Arc<Pod>>,
    /// The Service under the Sandbox's name, whoever owns it.
    pub service: Option<Arc<Service>>,
    /// What exists under each claim template's PVC name.
    pub volumes: Vec<Option<Arc<Pvc>>>,
    /// The claim or pool that controls it is gone, or is being deleted together with what it owns.
    pub abandoned: bool,
    /// The Sandbox was read live in this pass.
    pub confirmed: bool,
    /// An older Sandbox of the namespace whose name has the same hash.
    pub collides_with: Option<String>,
    /// What exists but could not be read; nothing can be decided about it in this pass.
    pub unreadable: Unreadable,
    /// When a postponed Pod metadata patch was first found due.
    pub patch_due_since: Option<Timestamp>,
    pub now: Timestamp,
}

/// Why each kind of child could not be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unreadable {
    pub pod: Option<String>,
    pub service: Option<String>,
    pub volume: Option<String>,
}

/// What does not change between passes.
#[derive(Clone, Debug)]
pub struct Settings {
    pub cluster_domain: String,
    /// How long a Pod metadata patch may be postponed; zero: not at all.
    pub write_behind: Duration,
    /// How long a new Sandbox may stay without a status that would only say that its Pod has just been made; zero: not at all. For
    /// where Pods run at once, so that mostly one write says it all.
    pub first_word: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self { cluster_domain: "cluster.local".to_owned(), write_behind: Duration::ZERO, first_word: Duration::ZERO }
    }
}

/// A write, and what its failure is called in the Ready condition.
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
    /// Being deleted, or about to be: the garbage collector does the rest.
    Leave,
    /// Read the Sandbox live: a Pod that went may have gone with it, and this cache would be the last to know.
    Confirm,
    /// The shutdown time has passed and the status does not say so yet. Nothing else is touched before it does.
    MarkExpired,
    /// Expired and marked: remove children, then the Sandbox or its status.
    CleanUp(CleanUp),
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
    /// Start of the postponement to remember; `None` when nothing is postponed.
    pub patch_due_since: Option<Timestamp>,
    /// When to look again even if nothing happens.
    pub requeue: Option<Duration>,
}

#[derive(Clone, Debug)]
pub enum PodPlan {
    /// None is wanted and none is there.
    None,
    /// More than one is ours: touch nothing.
    Ambiguous(usize),
    Create(Step),
    /// The Pod is there; `patch` brings its metadata (and, at adoption, its owner) up to date.
    Use {
        pod: Arc<Pod>,
        patch: Option<Step>,
    },
    /// Suspending: delete it.
    Delete {
        pod: Arc<Pod>,
        step: Step,
    },
    /// Suspending: it is on its way out, or not ours to delete.
    Await {
        pod: Arc<Pod>,
    },
    /// Something is in the way; said in the Ready condition.
    Refuse {
        error: String,
        foreign: bool,
    },
}

/// What the `pod-name` annotation of the Sandbox should become.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodName {
    Leave,
    Set(String),
    Clear,
}

pub fn plan(observed: &Observed, settings: &Settings) -> Plan {
    let sandbox = &*observed.sandbox;
    if sandbox.is_deleting() || observed.abandoned {
        return Plan::Leave;
    }
    if is_expired(sandbox, observed.now) {
        let marked = sandbox
            .condition(ConditionType::Ready)
            .is_some_and(|ready| ready.reason == Reason::SandboxExpired.as_str());
        return if marked { Plan::CleanUp(plan_clean_up(observed)) } else { Plan::MarkExpired };
    }
    let pod = plan_pod(observed);
    // The garbage collector removes an owner before what it owned, but two watches may show that the other way round.
    let had_one = sandbox.annotation(annotations::POD_NAME).is_some_and(|name| !name.is_empty());
    if matches!(pod, PodPlan::Create(_)) && had_one && !observed.confirmed {
        return Plan::Confirm;
    }
    let service = match (&pod, &observed.collides_with) {
        _ if observed.unreadable.service.is_some() => {
            ServicePlan::Refuse(observed.unreadable.service.clone().unwrap_or_default())
        }
        (PodPlan::Ambiguous(_), _) => ServicePlan::Skip,
        // Its selector would pick the other Sandbox's Pod.
        (_, Some(_)) if observed.service.is_none() => ServicePlan::Skip,
        _ => plan_service(sandbox, observed.service.as_deref()),
    };
    let volumes = match &observed.unreadable.volume {
        Some(error) => VolumePlan { steps: Vec::new(), refusal: Some(error.clone()) },
        None => plan_volumes(sandbox, &observed.volumes),
    };
    let mut plan =
        Reconcile { volumes, pod, service, patch_due_since: None, requeue: until_shutdown(sandbox, observed.now) };
    postpone_patch(&mut plan, observed, settings);
    Plan::Reconcile(Box::new(plan))
}

/// The boundary belongs to the expired side.
pub fn is_expired(sandbox: &Sandbox, now: Timestamp) -> bool {
    sandbox.spec.shutdown_time.as_ref().is_some_and(|shutdown| now >= shutdown.0)
}

/// Time left to the shutdown time, if one is set.
pub fn until_shutdown(sandbox: &Sandbox, now: Timestamp) -> Option<Duration> {
    let shutdown = sandbox.spec.shutdown_time.as_ref()?.0;
    Some(Duration::try_from(shutdown.duration_since(now)).unwrap_or(Duration::ZERO))
}

/// The Pod this Sandbox's annotation names, else its own name.
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

fn plan_pod(observed: &Observed) -> PodPlan {
    let sandbox = &*observed.sandbox;
    if let Some(error) = &observed.unreadable.pod {
        return PodPlan::Refuse { error: error.clone(), foreign: false };
    }
    match observed.owned_pods.as_slice() {
        [] => {}
        // The owner's uid beats whatever the annotation says.
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
        return PodPlan::Refuse { error: adoption::foreign(Child::Pod, &**pod, sandbox), foreign: true };
    }
    match adoption::permitted(Child::Pod, &**pod, sandbox) {
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

/// Takes the metadata patch of an owned Pod out of the plan while its window is open.
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

/// The annotation that belongs to how the Pod step ended (`pod`: the Pod now in use, in Running mode).
pub fn plan_pod_name(observed: &Observed, plan: &PodPlan, succeeded: bool) -> PodName {
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
        // It names a Pod that does not exist.
        PodPlan::Create(_) if current.is_some_and(|name| name != sandbox.name()) => PodName::Clear,
        PodPlan::Create(_) | PodPlan::Use { .. } => PodName::Leave,
    }
}
