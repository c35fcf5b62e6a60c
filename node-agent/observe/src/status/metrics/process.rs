//! The resources of this process, under Prometheus' standard names.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

#[derive(Debug, Clone)]
pub(super) struct Process {
    cpu: Counter<f64, AtomicU64>,
    cpu_delay: Counter<f64, AtomicU64>,
    memory: Gauge,
    open_files: Gauge,
}

impl Process {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let process = Self {
            cpu: Counter::default(),
            cpu_delay: Counter::default(),
            memory: Gauge::default(),
            open_files: Gauge::default(),
        };
        let started = Gauge::<f64, AtomicU64>::default();
        started.set(jiff::Timestamp::now().as_duration().as_secs_f64());
        registry.register_with_unit("cpu", "Processor time", Unit::Seconds, process.cpu.clone());
        registry.register_with_unit(
            "cpu_delay",
            "How long the agent's loop could have run, and no processor was free",
            Unit::Seconds,
            process.cpu_delay.clone(),
        );
        registry.register_with_unit(
            "resident_memory",
            "Resident memory",
            Unit::Bytes,
            process.memory.clone(),
        );
        registry.register("open_fds", "Open files and sockets", process.open_files.clone());
        registry.register_with_unit(
            "start_time",
            "When the process started",
            Unit::Seconds,
            started,
        );
        process
    }

    /// Reads the current values. A value that cannot be read is unchanged.
    #[expect(clippy::disallowed_methods, reason = "the kernel describes a process in files")]
    pub(super) fn measure(&self) {
        if let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) {
            let seconds = seconds(usage.user_time()) + seconds(usage.system_time());
            self.cpu.inner().store(seconds.to_bits(), Ordering::Relaxed);
        }
        // Of the main thread, which runs the loop.
        let schedstat = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
        if let Some(seconds) = delay(&schedstat) {
            self.cpu_delay.inner().store(seconds.to_bits(), Ordering::Relaxed);
        }
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        if let Some(kibibytes) = resident(&status) {
            self.memory.set(kibibytes * 1024);
        }
        if let Ok(files) = std::fs::read_dir("/proc/self/fd") {
            self.open_files.set(i64::try_from(files.count()).unwrap_or(i64::MAX));
        }
    }
}

fn seconds(time: TimeVal) -> f64 {
    let whole = u32::try_from(time.tv_sec()).unwrap_or(u32::MAX);
    let micros = u32::try_from(time.tv_usec()).unwrap_or_default();
    f64::from(whole) + f64::from(micros) / 1e6
}

/// The second number of `/proc/PID/schedstat`, which is in nanoseconds, in seconds.
fn delay(schedstat: &str) -> Option<f64> {
    let nanoseconds = schedstat.split_whitespace().nth(1)?.parse().ok()?;
    Some(Duration::from_nanos(nanoseconds).as_secs_f64())
}

/// `VmRSS` of `/proc/PID/status`, in KiB.
fn resident(status: &str) -> Option<i64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse().ok()
}
