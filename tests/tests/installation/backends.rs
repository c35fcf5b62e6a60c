//! Everything that lists the backends lists those of the flag.

use anyhow::{Context, Result, ensure};
use denizen_tests::conf::text;
use serde_json::Value;

/// The values of `run --backend`.
pub(crate) fn backends() -> Result<Vec<String>> {
    let command = denizen_agent::cli::command();
    let run = command.find_subcommand("run").context("no command `run`")?;
    let flag = run.get_arguments().find(|flag| flag.get_id() == "backend");
    let values = flag.context("no flag --backend")?.get_possible_values();
    Ok(values.iter().map(|value| value.get_name().to_owned()).collect())
}

#[test]
fn every_list_of_backends_is_that_of_the_flag() -> Result<()> {
    let backends = backends()?;
    let schema: Value = serde_json::from_str(&text("helm/denizen/values.schema.json")?)?;
    assert_eq!(schema["properties"]["backend"]["enum"], serde_json::json!(backends));
    // What an operator reads, and where: from these words on to those.
    let lists = [
        ("helm/denizen/values.yaml", "\n# auto, ", "\nbackend:"),
        ("agent/config.yaml", "\n# auto, ", "\nbackend:"),
        ("MIGRATION.md", "\n| `mode", "\n| `iptables.masqueradeAll`"),
        ("reference/flags.md", "\n| `--backend` |", "\n| `--"),
        ("../README.md", "\n| `--backend` |", "\n| `--"),
    ];
    for (file, begin, end) in lists {
        let text = text(file)?;
        let at = text.find(begin).with_context(|| format!("{file}: no {begin:?}"))?;
        let rest = &text[at + 1..];
        let list = &rest[..rest.find(end).with_context(|| format!("{file}: no {end:?}"))?];
        for backend in &backends {
            ensure!(list.contains(backend.as_str()), "{file}: no {backend}: {list}");
        }
    }
    Ok(())
}

/// kube-proxy's settings that have a flag are not said to have none.
#[test]
fn the_migration_names_the_flag_of_each_setting_of_kube_proxys_ipvs_mode() -> Result<()> {
    let text = text("MIGRATION.md")?;
    let row = text.lines().find(|line| line.starts_with("| `ipvs.scheduler`")).context("no row")?;
    ensure!(row.contains("`--ipvs-scheduler`"), "{row}");
    Ok(())
}
