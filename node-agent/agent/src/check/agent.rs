//! The checks of the running agent, from its own status.

use super::{Check, Finding, Report, Subject, Topic};
use denizen_observe::status::Status;
use denizen_text::describe;

/// The checks, without problems that another check in `report` has already found.
pub(super) fn checks(subject: &Subject, report: &Report) -> Vec<Check> {
    if subject.is_before_installation {
        let later = Finding::skipped("the installation brings it");
        return vec![Check::new(Topic::Running, later)];
    }
    let status = match &subject.agent {
        Ok(status) => status,
        Err(error) => {
            let failed = Finding::failure(
                describe(error),
                "start it; if it runs, its log says why it does not answer, and --run-dir must be its own",
            ).coded("agent-silent", [("error", describe(error))]);
            return vec![Check::new(Topic::Running, failed)];
        }
    };
    let Status { backend, pods, services, .. } = status;
    let running = format!("backend {backend}, {pods} pods, {services} services");
    let mut checks = vec![
        Check::new(Topic::Running, Finding::ok(running)),
        Check::new(Topic::Rules, rules(status)),
    ];
    checks.extend(
        complaints(status, report).into_iter().map(|finding| Check::new(Topic::Status, finding)),
    );
    checks
}

fn rules(status: &Status) -> Finding {
    match (status.synced, status.waiting_for.is_empty()) {
        (true, _) => Finding::ok("everything is programmed"),
        (false, true) => Finding::failure(
            "the first full set of rules is not in the kernel yet",
            "the errors below and the agent's log say why",
        )
        .coded("rules-missing", []),
        (false, false) => Finding::failure(
            format!("nothing is programmed: the agent waits for {}", status.waiting_for.join(", ")),
            "see what the checks of the API say",
        )
        .coded("agent-waits", [("for", status.waiting_for.join(", "))]),
    }
}

fn complaints(status: &Status, report: &Report) -> Vec<Finding> {
    const ADVICE: &str = "`denizen-agent status` and the agent's log follow it";
    let news = |text: &&String| !report.says(text);
    let errors = status.errors.iter().filter(news).map(|error| Finding::failure(error, ADVICE));
    let warnings =
        status.warnings.iter().filter(news).map(|warning| Finding::warning(warning, ADVICE));
    let all: Vec<Finding> = errors.chain(warnings).collect();
    match all.is_empty() {
        true => vec![Finding::ok("the agent reports nothing else that is wrong")],
        false => all,
    }
}
