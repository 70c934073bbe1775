//! Tests the image's file system as the script assembles it, and runs the service confined to it.

use std::path::Path;
use std::process::Command;

use super::{file, folder, output, root};
use crate::env::{Confined, kafka, program, redis};
use crate::verdict::Scene;

fn assemble(folder: &Path, archive: &Path) {
    let script = root().join("deploy/image/build.sh");
    output(Command::new(script).arg(program()).arg(folder).arg(archive));
}

#[test]
fn the_image_is_reproducible_and_contains_no_other_program() {
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
fn the_dockerfile_uses_the_script_and_an_unprivileged_user() {
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
fn a_service_confined_to_the_image_delivers_messages() {
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
    // Without root, the service has id 65532 only in its user namespace. The machine sees the user
    // that runs the tests.
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
