//! The rules that show dropped packets.

use denizen_nft::{Chain, Field, Key, Limit, Reject, Rule, Statement, Verdict};

use denizen_nft::sampled;

fn rule(statements: Vec<Statement>) -> Rule {
    Rule { statements, why: "for a test" }
}

fn is_tcp() -> Statement {
    Statement::Equals(Field::Protocol, Key::EMPTY.byte(6))
}

fn chain(rules: Vec<Rule>) -> Chain {
    Chain { name: "some".into(), base: None, why: "for a test", rules }
}

#[test]
fn what_drops_or_refuses_is_shown_and_nothing_else() {
    let drop = || Statement::Verdict(Verdict::Drop);
    let sample = |matches: Vec<Statement>| {
        let limit = Limit { burst: 5, hourly: 18_000 };
        rule([matches, vec![Statement::Limit(limit), Statement::Trace]].concat())
    };
    let passes = [
        rule(vec![is_tcp(), Statement::Verdict(Verdict::Return)]),
        rule(vec![Statement::Counter]),
        rule(vec![Statement::Verdict(Verdict::Goto("other".into()))]),
        rule(Vec::new()),
    ];
    let ends = [
        (rule(vec![is_tcp(), Statement::Counter, drop()]), sample(vec![is_tcp()])),
        (rule(vec![drop()]), sample(Vec::new())),
        (rule(vec![is_tcp(), Statement::Reject(Reject::TcpReset)]), sample(vec![is_tcp()])),
    ];
    assert_eq!(sampled(vec![chain(passes.to_vec())]), [chain(passes.to_vec())]);
    for (rule, sample) in ends {
        assert_eq!(sampled(vec![chain(vec![rule.clone()])]), [chain(vec![sample, rule])]);
    }
}
