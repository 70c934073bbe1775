//! The image's file system, as the script assembles it, and the service at work in it: confined to it, read-only, as a user of no name.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{file, folder, output, root};
use crate::env::{Confined, kafka, redis};
use crate::verdict::Scene;

/// What the image is made of: the tests' own build, or the one that `make image-check` made as it is shipped.
fn program() -> PathBuf {
    std::env::var_os("IMAGE_PROGRAM")
        .map_or_else(|| env!("CARGO_BIN_EXE_postdate").into(), PathBuf::from)
}

fn assemble(folder: &Path, archive: &Path) {
    let script = root().join("deploy/image/build.sh");
    output(Command::new(script).arg(program()).arg(folder).arg(archive));
}

#[test]
fn the_same_program_gives_the_same_bytes_and_nothing_to_run_but_it() {
    let place = folder();
    let path = |name: &str| place.path().join(name);
    assemble(&path("one"), &path("one.tar"));
    assemble(&path("two"), &path("two.tar"));
    assert!(
        std::fs::read(path("one.tar")).unwrap() == std::fs::read(path("two.tar")).unwrap(),
        "two builds differ"
    );
    let listed = output(Command::new("tar").arg("-tvf").arg(path("one.tar")));
    let programs: Vec<_> = listed
        .lines()
        .filter(|line| line.starts_with("-rwx") && !line.contains(".so"))
        .collect();
    assert!(
        matches!(programs[..], [one] if one.ends_with("./usr/bin/postdate")),
        "{programs:#?}"
    );
    assert!(
        !listed.contains("rws") && !listed.lines().any(|line| line.ends_with("/sh")),
        "{listed}"
    );
}

#[test]
fn the_dockerfile_ships_what_the_script_assembles_to_a_user_without_rights() {
    let text = file("deploy/Dockerfile");
    for line in [
        "RUN deploy/image/build.sh target/release/postdate /rootfs",
        "FROM scratch",
        "COPY --from=build /rootfs /",
        "USER 65532:65532",
    ] {
        assert!(text.lines().any(|have| have == line), "{line}\n{text}");
    }
    assert!(text.contains("cargo build --release --locked"), "{text}");
}

#[test]
fn messages_are_delivered_by_a_service_that_is_confined_to_the_image() {
    let place = folder();
    let rootfs = place.path().join("rootfs");
    assemble(&rootfs, &place.path().join("image.tar"));
    let mut scene = Scene::new(kafka(), "image", 2);
    let sink = scene.sink();
    let mut service = Confined::start(&rootfs, &scene.config(redis()));
    scene.send(200, 1_000..3_000);
    scene.all_arrive(&sink);
    let status = service.status();
    let line = |name: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap_or_default()
            .trim()
            .to_owned()
    };
    // Where the tests are not root's it is 65532 only to itself, and to the machine the user that it was started by.
    let own = rustix::process::geteuid();
    let user = if own.is_root() { 65532 } else { own.as_raw() };
    assert_eq!(
        (line("Uid:"), line("CapEff:")),
        (
            vec![user.to_string(); 4].join("\t"),
            "0000000000000000".to_owned()
        ),
        "{status}"
    );
    assert!(service.is_read_only("/"), "{}", service.mounts());
    assert_eq!(service.terminate().code(), Some(0));
}
