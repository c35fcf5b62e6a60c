//! Images for containerd, as `docker save` would write them: one layer, and the program to execute.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::json;

use crate::node::netns::checked;

/// The pause image's only program, which waits for ever.
const PAUSE_SOURCE: &str = "int pause(void); int main(void) { for (;;) pause(); }\n";

/// Makes the image `name` with one static program, which waits.
pub fn pause(folder: &Path, name: &str) -> Result<PathBuf> {
    let root = made(&folder.join("root"))?;
    let source = folder.join("pause.c");
    fs::write(&source, PAUSE_SOURCE)?;
    let mut compile = Command::new("cc");
    compile.args(["-static", "-O", "-o"]).arg(root.join("pause"));
    checked(compile.arg(source))?;
    archive(folder, name, "/pause")
}

/// Packs `folder/root` as an image.
fn archive(folder: &Path, name: &str, program: &str) -> Result<PathBuf> {
    let run =
        |program: &mut Command| checked(program.current_dir(folder)).map(|output| output.stdout);
    run(Command::new("tar").args(["-C", "root", "-cf", "layer.tar", "."]))?;
    let sum = String::from_utf8(run(Command::new("sha256sum").arg("layer.tar"))?)?;
    let sum = sum.split_whitespace().next().context("sha256sum says nothing")?;
    let config = json!({
        "architecture": "amd64", "os": "linux", "config": { "Entrypoint": [program] },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{sum}")] },
    });
    fs::write(folder.join("config.json"), config.to_string())?;
    let manifest =
        json!([{ "Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"] }]);
    fs::write(folder.join("manifest.json"), manifest.to_string())?;
    let parts = ["manifest.json", "config.json", "layer.tar"];
    run(Command::new("tar").args(["-cf", "image.tar"]).args(parts))?;
    Ok(folder.join("image.tar"))
}

fn made(path: &Path) -> Result<PathBuf> {
    fs::create_dir_all(path).with_context(|| format!("cannot make {}", path.display()))?;
    Ok(path.to_owned())
}
