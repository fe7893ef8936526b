//! CPU time, memory and cores of processes, from the kernel.

use rustix::thread::{CpuSet, sched_setaffinity};

/// Ticks per second of CPU time in `/proc`, for all kernel clocks.
const TICKS: f64 = 100.0;

/// Returns the CPU time of a process so far: user and kernel mode, all threads.
///
/// # Errors
/// When there is no such process.
pub(crate) fn cpu_seconds(pid: u32) -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name, in parentheses, may have any characters; user and system time are the 12th and 13th field after it.
    let fields = stat.rsplit_once(')').map(|(_, rest)| rest).unwrap_or_default();
    let ticks: f64 = fields.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum();
    Ok(ticks / TICKS)
}

/// Returns the resident memory of a process in bytes.
///
/// # Errors
/// When there is no such process.
pub(crate) fn resident_bytes(pid: u32) -> anyhow::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or_default() * 1024)
}

/// Restricts this thread, and the processes that it starts later, to these cores.
///
/// # Errors
/// When there is no such core.
pub(crate) fn pin(cores: &[usize]) -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    for core in cores {
        set.set(*core);
    }
    Ok(sched_setaffinity(None, &set)?)
}

/// Raises the priority of this process if allowed, so that other processes do not delay the generator.
pub(crate) fn be_first() {
    let _ignored = rustix::process::nice(-15);
}

/// Describes the machine in one line, for results.
pub(crate) fn describe() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(": unknown");
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let load = read("/proc/loadavg");
    let kernel = read("/proc/sys/kernel/osrelease");
    format!(
        "{cores} cores of {}, Linux {}, load average {}",
        model.trim_start_matches([' ', '\t', ':']),
        // Without the suffix of the distribution.
        kernel.trim().split('-').next().unwrap_or_default(),
        load.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
    )
}

/// Returns the cores that this thread may run on.
pub(crate) fn cores() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect()
}
