//! Whom the admin endpoint answers: a stranger learns from it that the process lives, and nothing of what waits.

use crate::env::{Postdate, kafka, redis};
use crate::verdict::Scene;

const TOKEN: &str = "3f9c1c7e-of-this-test";

#[test]
fn with_a_token_the_endpoint_tells_a_stranger_only_that_the_process_lives() {
    let scene = Scene::new(kafka(), "guarded", 1);
    let mut postdate = Postdate::start_with(&scene.config_stored("", ""), &[("POSTDATE_ADMIN__TOKEN", TOKEN)]);
    postdate.wait_until_ready();
    assert_eq!(postdate.get("/healthz").map(|(status, _)| status), Some(200));
    for path in ["/metrics", "/pending", "/pending?route=r", "/ledger", "/nothing"] {
        let (status, body) = postdate.get(path).expect("it answers");
        assert_eq!(status, 401, "{path}: {body}");
        assert!(!body.contains(TOKEN) && !body.contains(&scene.source), "{path}: {body}");
        let (status, _) = postdate.get_with(path, "Authorization: Bearer 3f9c1c7e-of-this-tesT").expect("it answers");
        assert_eq!(status, 401, "{path}: one letter is wrong");
        let (status, body) = postdate.get_with(path, &format!("Authorization: Bearer {TOKEN}")).expect("it answers");
        assert_eq!(status, if path == "/nothing" { 404 } else { 200 }, "{path}: {body}");
    }
    // A command beside it has the same configuration, and so the token.
    for command in ["pending", "ledger"] {
        let said = postdate.command(&[command]);
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    }
    assert!(!postdate.logs().contains(TOKEN));
}

#[test]
fn an_address_that_others_reach_is_refused_without_a_token_and_taken_with_one() {
    let scene = Scene::new(kafka(), "open", 1);
    let mut open = Postdate::start_with(&scene.config(redis()), &[("POSTDATE_ADMIN__LISTEN", "0.0.0.0:0")]);
    assert_eq!(open.wait_until_ended().code(), Some(2));
    let said = open.logs();
    assert!(
        said.contains("key:  admin.listen") && said.contains("can be reached from other machines") && said.contains("token_file"),
        "{said}"
    );
    let token = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(token.path(), format!("{TOKEN}\n")).unwrap();
    let variables = [("POSTDATE_ADMIN__LISTEN", "0.0.0.0:0"), ("POSTDATE_ADMIN__TOKEN_FILE", token.path().to_str().unwrap())];
    let mut guarded = Postdate::start_with(&scene.config(redis()), &variables);
    crate::env::eventually("it listens", crate::env::PATIENCE, || guarded.logs().contains("admin endpoint listens").then_some(()));
    assert!(guarded.runs(), "{}", guarded.logs());
}
