//! Two builds of eventweir under load at the same time, on the same cores: which takes less CPU time an event?
//!
//! In turns, what other programs do to the machine hides a difference of a few percent; here it meets both alike. The figures are no
//! one's but of this run: two servers share what one has otherwise, and are woken more often.

use std::path::Path;

use super::What;
use super::bench::Bench;
use super::table::Figures;
use super::weir::{ROOM, Weir};

/// Prints by how much the program that is measured takes less than `other`.
pub(super) fn beside(bench: &Bench<'_>, what: What, other: &Path) -> anyhow::Result<()> {
    let flags = format!("{} --pause 200", super::http::flags(what));
    let programs = [bench.options.eventweir.as_path(), other];
    let (mut micros, mut ratios) = ([(); 2].map(|()| Figures::default()), Figures::default());
    for round in 1..=bench.options.rounds {
        let start = |program: &Path| {
            let (stub, kubeconfig) = bench.stub(Some(bench.options.upstream_writes))?;
            let weir = Weir::start(program, &bench.folder, &kubeconfig, ROOM, &bench.server_cores, None)?;
            anyhow::Ok((stub, weir))
        };
        let running = [start(programs[0])?, start(programs[1])?];
        let outcomes = std::thread::scope(|scope| {
            let loads = running
                .each_ref()
                .map(|(_, weir)| scope.spawn(|| bench.load(weir.listen, &[weir.child.pid()], &flags)));
            loads.map(|load| load.join().map_err(|_| anyhow::anyhow!("a load panicked"))?)
        });
        let mut seen = [0.0; 2];
        for (((_, weir), outcome), seen) in running.iter().zip(outcomes).zip(&mut seen) {
            let outcome = outcome?;
            weir.check(&[&outcome])?;
            *seen = outcome.cpu_micros();
        }
        println!("round {round}: {:.2} and {:.2} µs CPU an event", seen[0], seen[1]);
        micros.iter_mut().zip(seen).for_each(|(micros, seen)| micros.push(seen));
        ratios.push(seen[1] / seen[0]);
    }
    for (program, micros) in programs.iter().zip(&micros) {
        println!("{:<60} µs CPU an event {micros}", program.display());
    }
    println!("events for the same CPU time, first : second {ratios}");
    Ok(())
}
