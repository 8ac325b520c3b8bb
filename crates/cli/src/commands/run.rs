//! `run`: one command in a new sandbox, on an ephemeral engine that is removed afterwards.

pub(crate) mod volumes;

use super::{
    changes,
    here::HereFolders,
    host_problem::with_host_problem,
    image::find_login,
    network, objects, on_started,
    progress::Progress,
    streams::{Pumps, TIMED_OUT, check_terminal, exit_code, follow_size, until_output_closes},
};
use crate::{
    args::{CreateArgs, EgressArgs, GlobalArgs, Network, OutputArgs, OutputFormat, RunArgs, SleepArgs, WaitArgs},
    terminal::{self, RawMode},
};
use agent_sandbox_client::{self as sdk, ContainerOptions, CopiedFolder, Subject};
use agent_sandbox_engine::{
    DataDir, DefaultLimit, Engine, EngineConfig, ListenConfig, NodeConfig, Persistence, host_check, host_image_cache,
};
use agent_sandbox_node::runtime::{
    ExecRequest, ExecSession, ImageService as _, PodRuntime as _, PullPolicy, PullProgress, RegistryCredentials,
    TerminalSize, WeaknessKind,
};
use anyhow::{Context as _, Result, anyhow, bail};
use k8s_openapi::api::{core::v1::Pod, networking::v1::NetworkPolicy};
use kube::{Api, api::PostParams};
use serde_json::json;
use std::{io::IsTerminal, path::PathBuf, process::ExitCode, time::Duration};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};

/// Name of the Pod unless `--name` gives one.
const NAME: &str = "run";
/// The image that contains this machine's own programs.
const HOST_IMAGE: &str = "host";
/// Exit code of shells for a command that Ctrl-C ended: 128 + SIGINT.
const INTERRUPTED: u8 = 130;
/// Timeout for the sandbox's start. Starting takes milliseconds, but the image may have to be pulled first.
const START_TIMEOUT: Duration = Duration::from_secs(600);

pub(crate) async fn run(global: &GlobalArgs, args: RunArgs) -> Result<ExitCode> {
    check_terminal(args.tty)?;
    if args.detach {
        return run_detached(global, args).await;
    }
    let mut env = args.env.clone();
    if args.tty {
        let mut terminal = terminal::environment(|name| std::env::var(name).ok());
        terminal.retain(|(name, _)| !env.iter().any(|(named, _)| named == name));
        env.extend(terminal);
    }
    if let Some(problem) = host_check::check_settings() {
        return Err(problem.into());
    }
    let mut volumes = args.volume.iter().map(|text| volumes::parse(text)).collect::<Result<Vec<_>>>()?;
    let data = DataDir::locate(global.data_dir.as_deref());
    let folders = match &data {
        Ok(data) => HereFolders::find(&args.folders, data.path())?,
        Err(_) => HereFolders::default(),
    };
    volumes.extend(folders.mounts);
    env.extend(folders.env.into_iter().filter(|(name, _)| !env.iter().any(|(set, _)| set == name)).collect::<Vec<_>>());
    let copies = match folders.copies.is_empty() {
        true => None,
        false => Some(CopiesFolder::create(data?)?),
    };
    let folder = tempfile::Builder::new().prefix("agent-sandbox-run-").tempdir();
    let folder = folder.context("cannot make a temporary folder for the sandbox")?;
    let config = EngineConfig {
        audit: None,
        persistence: Persistence::Ephemeral(folder.path().to_owned()),
        listen: ListenConfig::default(),
        node: NodeConfig {
            host_paths: host_paths(&volumes, &folders.copies),
            copies: copies.as_ref().map(CopiesFolder::path),
            images: image_folder(global, &args.image)?,
            ephemeral: true,
            // The caller names the registry, so it may be in a private network.
            mirrors: registry_of(&args.image).map(|name| (name.to_owned(), name.to_owned())).into_iter().collect(),
            memory: args.memory.clone().unwrap_or_default(),
            cpus: args.cpus.clone().unwrap_or_default(),
            pids: args.pids.clone().unwrap_or_default(),
            storage: args.storage.clone().unwrap_or_default(),
            inodes: args.inodes.clone().unwrap_or_default(),
            ..NodeConfig::default()
        },
    };
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for Ctrl-C")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    let mut hangup = signal(SignalKind::hangup()).context("cannot wait for SIGHUP")?;
    let engine = Engine::start(config).await.map_err(with_host_problem)?;
    if let Err(error) = check_weaknesses(&engine, &args) {
        engine.remove().await?;
        return Err(error);
    }
    let container = ContainerOptions {
        image: args.image.clone(),
        memory: args.memory.as_ref().and_then(chosen_quantity),
        cpus: args.cpus.as_ref().and_then(chosen_quantity),
        runtime_class: args.isolation.clone(),
        working_dir: args.workdir.clone().or_else(|| folders.working_dir.clone()),
        env,
        host_paths: volumes,
        copies: folders.copies,
        ..ContainerOptions::default()
    };
    let limit = args.timeout.unwrap_or(Duration::MAX);
    let outcome = tokio::select! {
        outcome = tokio::time::timeout(limit, run_in_sandbox(&engine, &args, container)) => match outcome {
            Ok(outcome) => outcome,
            Err(_) => {
                eprintln!("error: the command was stopped: it took longer than --timeout");
                Ok(ExitCode::from(TIMED_OUT))
            }
        },
        _ = interrupt.recv() => Ok(ExitCode::from(INTERRUPTED)),
        _ = terminate.recv() => Ok(ExitCode::from(INTERRUPTED)),
        // A closed terminal must not leave the sandbox behind: no command could find it again.
        _ = hangup.recv() => Ok(ExitCode::from(INTERRUPTED)),
    };
    engine.remove().await?;
    if let Some(copies) = copies {
        changes::summarise(&copies.data, &copies.name)?;
    }
    outcome
}

/// Where the copies of a `run` are stored, under a name by which `changes` finds them.
struct CopiesFolder {
    data: DataDir,
    name: String,
}

impl CopiesFolder {
    fn create(data: DataDir) -> Result<Self> {
        let failed = || format!("cannot make a folder for the changes in {}", data.path().display());
        data.create().with_context(failed)?;
        let copies = data.copies();
        match std::fs::create_dir(&copies) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error).with_context(failed),
            _ => {}
        }
        loop {
            let name = unique_name();
            match std::fs::create_dir(copies.join(&name)) {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error).with_context(failed),
                Ok(()) => return Ok(Self { data, name }),
            }
        }
    }

    fn path(&self) -> PathBuf {
        self.data.copies().join(&self.name)
    }
}

/// A name that no other `run` has at this moment.
fn unique_name() -> String {
    let unique = jiff::Timestamp::now().as_microsecond() & 0xff_ffff;
    format!("{NAME}-{unique:06x}")
}

/// The host folders that the sandbox may have.
fn host_paths(volumes: &[(String, String, bool)], copies: &[CopiedFolder]) -> Vec<PathBuf> {
    let mounted = volumes.iter().map(|(source, _, _)| source);
    mounted.chain(copies.iter().map(|copy| &copy.path)).map(PathBuf::from).collect()
}

/// `run --detach`: a Sandbox of the engine, which stays, instead of one of this process's own.
async fn run_detached(global: &GlobalArgs, args: RunArgs) -> Result<ExitCode> {
    check_detached_limits(&args)?;
    let create = CreateArgs {
        name: args.name.unwrap_or_else(unique_name),
        image: args.image,
        env: args.env,
        volume: args.volume,
        folders: args.folders,
        network: (args.network != Network::None).then_some(args.network),
        workdir: args.workdir,
        isolation: args.isolation,
        memory: args.memory.as_ref().and_then(chosen_quantity),
        cpus: args.cpus.as_ref().and_then(chosen_quantity),
        storage: args.storage.as_ref().and_then(chosen_quantity),
        egress: EgressArgs { allow: args.allow },
        command: args.command,
        template: None,
        snapshot: None,
        publish: Vec::new(),
        expires_in: None,
        sleep: SleepArgs::default(),
        wait: WaitArgs { wait: sdk::READY_TIMEOUT },
        keep: false,
        remove: args.remove,
        output: OutputArgs { output: OutputFormat::Table },
    };
    on_started(global, async |cluster| objects::create(global, cluster, create).await).await?;
    Ok(ExitCode::SUCCESS)
}

/// Refuses limits that a Pod cannot ask for: on the engine they are the same for all sandboxes.
fn check_detached_limits(args: &RunArgs) -> Result<()> {
    let all = [
        ("memory", &args.memory, "--pod-memory"),
        ("cpus", &args.cpus, "--pod-cpus"),
        ("pids", &args.pids, "--pod-pids-limit"),
        ("storage", &args.storage, "--pod-storage"),
        ("inodes", &args.inodes, "--pod-inodes"),
    ];
    for (flag, limit, of_engine) in all {
        let text = match limit {
            Some(DefaultLimit::Unlimited) => "none",
            Some(DefaultLimit::Quantity(text)) if matches!(flag, "pids" | "inodes") => text,
            _ => continue,
        };
        bail!(
            "--{flag} {text} cannot be set for one sandbox of the engine, only for all of them: leave it out, or start the engine with `agent-sandbox down && agent-sandbox up --detach {of_engine} {text}`"
        );
    }
    Ok(())
}

async fn run_in_sandbox(engine: &Engine, args: &RunArgs, container: ContainerOptions) -> Result<ExitCode> {
    let client = engine.client();
    let own_command = pull(engine, &args.image).await?;
    let command = if args.command.is_empty() { own_command } else { args.command.clone() };
    if command.is_empty() {
        bail!("the image {} has no command of its own; give one: agent-sandbox run --image {0} -- COMMAND", args.image);
    }
    let name = args.name.as_deref().unwrap_or(NAME);
    if args.network == Network::Public {
        let policies: Api<NetworkPolicy> = Api::namespaced(client.clone(), "default");
        let policy = network::policy("public", json!({}), args.network)?;
        policies.create(&PostParams::default(), &policy).await.context("cannot open the network")?;
    }
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let mut pod = sdk::pod(name, &container).context("cannot describe the sandbox")?;
    let rules = EgressArgs { allow: args.allow.clone() }.annotations();
    pod.metadata.annotations.get_or_insert_default().extend(rules);
    pods.create(&PostParams::default(), &pod).await.context("cannot create the sandbox")?;
    let pod = tokio::select! {
        started = sdk::pod_started(&client, "default", name, START_TIMEOUT) => started?,
        reason = sdk::start_failure(&client, "default", Subject::Pod(name)) => {
            return Err(with_host_problem(anyhow!("the sandbox cannot start: {reason}")));
        }
    };
    let working_dir = container.working_dir;
    let size = terminal::size().filter(|_| args.tty).map(|(columns, rows)| TerminalSize { rows, columns });
    let request = ExecRequest {
        command,
        working_dir,
        stdin: args.interactive || args.tty || !std::io::stdin().is_terminal(),
        stdout: true,
        stderr: !args.tty,
        tty: args.tty,
        size,
        ..ExecRequest::default()
    };
    let session = engine.exec(&pod, request).await?;
    let raw = if args.tty { RawMode::enter() } else { None };
    let code = until_output_closes(connect_streams(session)).await;
    drop(raw);
    code
}

/// Connects this process's streams with the session's until the command ends.
async fn connect_streams(session: ExecSession) -> Result<ExitCode> {
    if let Some(resize) = session.resize {
        // Fails when the command ends meanwhile; then there is nothing to resize.
        tokio::spawn(follow_size(async move |columns, rows| Ok(resize(TerminalSize { rows, columns })?)));
    }
    let pumps = Pumps::start(session.stdin, session.stdout, session.stderr);
    let exit = session.exit.await?;
    pumps.finish().await;
    Ok(exit_code(exit.code))
}

/// Folder of the image store: shared with the engine of the same user, so that `run` finds images that were pulled or
/// imported. The image `host` needs no store: it is cached, or made anew in the sandbox's own folder where there is no
/// cache.
fn image_folder(global: &GlobalArgs, image: &str) -> Result<Option<PathBuf>> {
    if image == HOST_IMAGE {
        return Ok(host_image_cache());
    }
    let data = DataDir::locate(global.data_dir.as_deref())?;
    data.create().with_context(|| format!("cannot make the data folder {}", data.path().display()))?;
    Ok(Some(data.images()))
}

/// The registry that an image's name begins with, if it does.
fn registry_of(image: &str) -> Option<&str> {
    let (first, _) = image.split_once('/')?;
    (first.contains(['.', ':']) || first == "localhost").then_some(first)
}

/// Pulls the image before the Pod is created, to show progress on a terminal. Returns the image's own command.
async fn pull(engine: &Engine, image: &str) -> Result<Vec<String>> {
    if image == HOST_IMAGE {
        return Ok(Vec::new());
    }
    let credentials: Vec<_> = find_login(image)?.into_iter().map(RegistryCredentials::from).collect();
    let line = Progress::start(image.to_owned(), None);
    let (progress, mut seen) = watch::channel(PullProgress::default());
    let kernel = engine.kernel();
    let work = kernel.ensure(image, PullPolicy::IfNotPresent, &credentials, Some(progress));
    tokio::pin!(work);
    let outcome = loop {
        tokio::select! {
            outcome = &mut work => break outcome,
            Ok(()) = seen.changed() => {
                let PullProgress { done, total } = *seen.borrow_and_update();
                line.set(done, total);
            }
        }
    };
    line.finish();
    let config = outcome.with_context(|| format!("cannot use the image {image}"))?.config;
    Ok([config.entrypoint, config.command].concat())
}

/// Warns about limits that were requested and are not enforced on this machine. A network that was requested and is
/// not available is an error: the command would fail later, for a reason that it cannot know.
fn check_weaknesses(engine: &Engine, args: &RunArgs) -> Result<()> {
    let chosen = [&args.memory, &args.cpus].into_iter().flatten();
    let limited = chosen.into_iter().any(|limit| *limit != DefaultLimit::Unlimited);
    let weaknesses = engine.kernel().weaknesses();
    let not_enforced = weaknesses.iter().filter(|weakness| weakness.kind == WeaknessKind::LimitNotEnforced);
    for weakness in not_enforced.filter(|_| limited) {
        eprintln!("warning: {}", weakness.message);
    }
    network::check(&weaknesses, args.network)
}

fn chosen_quantity(limit: &DefaultLimit) -> Option<String> {
    match limit {
        DefaultLimit::Quantity(text) => Some(text.clone()),
        DefaultLimit::OfMachine | DefaultLimit::Unlimited => None,
    }
}
