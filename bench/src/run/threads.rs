//! Target 6, threads: what two get done, to what one does.

use super::bench::Bench;
use super::child::Child;
use super::table::{Figures, Target, short, verdict};
use super::weir::{ROOM, Weir};

/// One worker thread on one core, then two on two; and two programs of one thread each, on a core each and with half of the
/// objects each, which share nothing, for what the machine gives to two.
///
/// The generator runs on the second core, where the upstream runs too. It wakes up now and then, so that nobody pays for waking it, and
/// leaves what takes several times as long on its way, so that nobody waits for it.
pub(super) fn threads(bench: &Bench<'_>) -> anyhow::Result<()> {
    let both: Vec<usize> = bench.server_cores.iter().chain(&bench.load_cores).copied().take(2).collect();
    if both.len() < 2 {
        println!("one core: nothing to say about two threads");
        return Ok(());
    }
    let kinds = [
        ("batches", "--batch 500 --pause 300", 4),
        ("single posts", "--pause 300", 512),
        ("single posts over HTTP/2", "--protocol http2 --depth 32 --pause 300", 8),
    ];
    for (name, flags, connections) in kinds {
        let mut rates = [Figures::default(), Figures::default(), Figures::default()];
        let mut shares = rates.clone();
        for _ in 0..bench.options.rounds {
            let kinds = [(&[&both[..1]][..], 1), (&[&both[..]], 2), (&[&both[..1], &both[1..]], 1)];
            for (((programs, workers), rates), shares) in kinds.into_iter().zip(&mut rates).zip(&mut shares) {
                let count = programs.len();
                let flags = format!(
                    "{flags} --connections {} --objects {} --nodes {}",
                    connections / count,
                    4000 / count,
                    200 / count
                );
                let Throughput { events, server, others } = throughput(bench, programs, workers, &flags)?;
                println!(
                    "  {name}, {count} program(s) of {workers} worker thread(s): {} events/s, server {} cores, generator and upstream {}",
                    short(events),
                    short(server),
                    short(others)
                );
                rates.push(events);
                // What the two wait for each other counts, what others had of their cores does not.
                shares.push(if count * workers == 2 { events * 2.0 / (2.0 - others) } else { events });
            }
        }
        println!("{name}, events/s: one thread {}, two {}, two programs {}", rates[0], rates[1], rates[2]);
        verdict(&format!("two threads : one, {name}"), &rates[1].ratio(&rates[0]), Target::AtLeast(1.7));
        let by_share = shares[1].ratio(&shares[0]);
        verdict(&format!("the same by the part of two cores that was left, {name}"), &by_share, Target::AtLeast(1.7));
        println!(
            "two programs : one, {name}: {}; by what was left {}",
            rates[2].ratio(&rates[0]),
            shares[2].ratio(&shares[0])
        );
    }
    Ok(())
}

/// What some programs got done together.
struct Throughput {
    /// A second.
    events: f64,
    /// Cores that they used.
    server: f64,
    /// Cores that generators and upstreams used.
    others: f64,
}

/// Loads programs at the same time, each on its cores, with an upstream and a generator of its own.
fn throughput(bench: &Bench<'_>, programs: &[&[usize]], workers: usize, flags: &str) -> anyhow::Result<Throughput> {
    let writes = bench.options.upstream_writes / programs.len() as f64;
    let mut servers = Vec::new();
    for cores in programs {
        let (stub, kubeconfig) = bench.stub(Some(writes))?;
        servers.push((bench.weir_on(&kubeconfig, ROOM, cores, Some(workers))?, stub));
    }
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let load = |(weir, stub): &(Weir, Child)| bench.load(weir.listen, &[weir.child.pid(), stub.pid()], flags);
        let loads: Vec<_> = servers.iter().map(|server| scope.spawn(move || load(server))).collect();
        loads.into_iter().map(|load| load.join().map_err(|_| anyhow::anyhow!("a load panicked"))?).collect()
    });
    let mut all = Throughput { events: 0.0, server: 0.0, others: 0.0 };
    for ((weir, _), outcome) in servers.iter().zip(outcomes) {
        let outcome = outcome?;
        weir.check(&[&outcome])?;
        all.events += outcome.per_second;
        all.server += outcome.watched_cpu[0] / outcome.seconds;
        all.others += (outcome.watched_cpu[1] + outcome.own_cpu) / outcome.seconds;
    }
    Ok(all)
}
