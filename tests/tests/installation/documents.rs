//! Links between the documents lead somewhere, and nobody has to know a page's address to find it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use denizen_tests::conf;

/// The tree's top.
fn root() -> Result<PathBuf> {
    conf::folder().join("..").canonicalize().context("cannot find the tree")
}

/// Every `*.md` of a folder.
fn pages(folder: &Path) -> Result<Vec<PathBuf>> {
    files(folder, "md")
}

/// Every file of a folder with this extension, without what cargo and git keep there.
fn files(folder: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot list {folder:?}"))? {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name());
        if entry.file_type()?.is_dir() {
            if name != "target" && !name.as_encoded_bytes().starts_with(b".") {
                found.extend(files(&path, extension)?);
            }
        } else if path.extension().is_some_and(|of_file| of_file == extension) {
            found.push(path);
        }
    }
    Ok(found)
}

/// The lines that are not within a block of code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut code = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence
    })
}

/// The anchors of a page, as GitHub makes them of the headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose(text).filter(|line| line.starts_with('#'));
    let mut anchors = BTreeSet::new();
    for heading in headings {
        let words = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = words.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        let number = (1..).map(|number| format!("{anchor}-{number}"));
        let mut names = std::iter::once(anchor.clone()).chain(number);
        anchors.extend(names.find(|name| !anchors.contains(name)));
    }
    anchors
}

/// The targets of a page's links.
fn links(text: &str) -> Vec<String> {
    let text = prose(text).collect::<Vec<_>>().join("\n");
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    let targets = targets.map(|(target, _)| target.to_owned());
    targets.filter(|target| !target.contains("://") && !target.starts_with("mailto:")).collect()
}

#[test]
fn every_link_leads_to_a_file_and_to_a_heading_in_it() -> Result<()> {
    let pages = pages(&root()?)?;
    let (mut followed, mut dead) = (0, Vec::new());
    for page in &pages {
        for link in links(&fs::read_to_string(page)?) {
            followed += 1;
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = match file {
                "" => page.clone(),
                _ => page.with_file_name("").join(file),
            };
            let there = target.exists()
                && (anchor.is_empty() || anchors(&fs::read_to_string(&target)?).contains(anchor));
            if !there {
                dead.push(format!("{}: {link}", page.display()));
            }
        }
    }
    ensure!(followed > 100, "only {followed} links in {} pages", pages.len());
    ensure!(dead.is_empty(), "links to nowhere:\n{}", dead.join("\n"));
    Ok(())
}

#[test]
fn the_index_of_the_reference_lists_every_page() -> Result<()> {
    let folder = conf::folder().join("reference");
    let listed: BTreeSet<String> = links(&conf::text("reference/README.md")?).into_iter().collect();
    for page in pages(&folder)? {
        let name = page.strip_prefix(&folder)?.to_str().context("a name in UTF-8")?;
        ensure!(name == "README.md" || listed.contains(name), "{name} is not in the index");
    }
    Ok(())
}

#[test]
fn the_architecture_has_a_line_for_each_crate() -> Result<()> {
    let root = root()?;
    let page = fs::read_to_string(root.join("node-agent/README.md"))?;
    let manifest = fs::read_to_string(root.join("Cargo.toml"))?;
    let names = manifest.lines().filter_map(|line| {
        let member = line.trim().strip_suffix("\",")?.strip_prefix('"')?;
        member.strip_prefix("node-agent/").or_else(|| member.strip_prefix("shared/"))
    });
    let names: Vec<&str> = names.collect();
    ensure!(names.contains(&"plan") && names.contains(&"nft"), "{names:?}");
    for name in names {
        ensure!(page.contains(&format!("\n| `{name}` |")), "no line for {name}");
    }
    Ok(())
}

/// A type or a function that is renamed is renamed there too.
#[test]
fn the_architecture_names_what_exists() -> Result<()> {
    let root = root()?;
    let page = fs::read_to_string(root.join("node-agent/README.md"))?;
    let is_of_a_name = |character: char| character.is_alphanumeric() || character == '_';
    let mut known = BTreeSet::new();
    for folder in ["node-agent", "shared", "cni-plugin"] {
        for file in files(&root.join(folder), "rs")? {
            let text = fs::read_to_string(file)?;
            known.extend(text.split(|character| !is_of_a_name(character)).map(str::to_owned));
        }
    }
    let prose = prose(&page).collect::<Vec<_>>().join("\n");
    let quoted = prose.split('`').skip(1).step_by(2);
    let paths = quoted.filter(|text| text.chars().all(|c| is_of_a_name(c) || c == ':'));
    let is_of_rust = |path: &&str| path.contains("::") || path.starts_with(char::is_uppercase);
    let paths: Vec<&str> = paths.filter(is_of_rust).collect();
    ensure!(paths.contains(&"Agent::pass"), "{paths:?}");
    for name in paths.iter().flat_map(|path| path.split("::")).filter(|name| !name.is_empty()) {
        let folder = root.join("node-agent").join(name);
        ensure!(known.contains(name) || folder.is_dir(), "there is no {name}");
    }
    Ok(())
}

/// What the programs, the manifests and the alerts name is there.
#[test]
fn every_page_that_is_named_in_the_tree_exists() -> Result<()> {
    let root = root()?;
    let listed = std::process::Command::new("grep")
        .args(["-rhoIE", "--exclude-dir=target", "--exclude-dir=.git"])
        .args([r"conf/[A-Za-z/-]+\.md", "."])
        .current_dir(&root)
        .output()?;
    let names: BTreeSet<String> =
        String::from_utf8(listed.stdout)?.lines().map(str::to_owned).collect();
    ensure!(names.contains("conf/MIGRATION.md"), "{names:?}");
    for name in names {
        ensure!(root.join(&name).exists(), "{name} is named and does not exist");
    }
    Ok(())
}
