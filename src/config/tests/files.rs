//! Configs in files, and the secrets in other files.

use std::fs;

use crate::config::load;

const CONFIG: &str = "\
[admin]
token = \"file:token\"
[upstream.api]
targets = [\"http://127.0.0.1:3000\"]
";

#[test]
fn a_secret_in_a_file_ends_before_its_line_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gateway.toml");
    fs::write(&path, CONFIG).unwrap();
    for (text, token) in [
        ("s3cret\n", "s3cret"),
        ("s3cret\r\n", "s3cret"),
        ("s3cret", "s3cret"),
    ] {
        fs::write(folder.path().join("token"), text).unwrap();
        let loaded = load(&path).unwrap();
        assert_eq!(loaded.settings.admin.token.as_deref(), Some(token), "{text:?}");
    }
    fs::write(folder.path().join("token"), "\n").unwrap();
    let report = load(&path).unwrap_err().to_string();
    assert!(report.contains(":2:9: error: the secret is empty"), "{report}");
}

#[test]
fn a_file_that_cannot_be_read_is_a_finding() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gateway.toml");
    let report = load(&path).unwrap_err();
    let name = path.display();
    let said = report.to_string();
    assert!(
        said.starts_with(&format!("{name}: error: cannot read the config file: ")),
        "{said}"
    );
    assert!(
        report.render(false).contains(&format!("--> {name}")),
        "{}",
        report.render(false)
    );

    let said = load(folder.path()).unwrap_err().to_string();
    assert!(said.contains("error: cannot read the config file: "), "{said}");

    fs::write(&path, b"[log]\nlevel = \"\xff\"\n").unwrap();
    let report = load(&path).unwrap_err();
    let said = report.to_string();
    assert!(
        said.ends_with(":2:10: error: the config file is not UTF-8 from here on; help: save it as UTF-8"),
        "{said}"
    );
    assert!(report.render(false).contains("level = \""));
}

#[test]
fn whom_to_trust_is_in_a_file_beside_the_config() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gateway.toml");
    let store = "[store]\nkind = \"redis\"\nshards = [\"h\", \"rediss://g\"]\nca = \"ca.pem\"\n";
    fs::write(&path, CONFIG.replace("file:token", "t") + store).unwrap();
    let certificate = || rcgen::generate_simple_self_signed(["g".to_owned()]).unwrap();
    let redis = || load(&path).unwrap().settings.store.redis.unwrap();

    let (one, other) = (certificate(), certificate());
    fs::write(folder.path().join("ca.pem"), one.cert.pem()).unwrap();
    let first = redis();
    let by_tls: Vec<bool> = first.servers.listed().iter().map(|shard| shard.tls).collect();
    assert_eq!(by_tls, [false, true]);
    let places: Vec<String> = first.servers.listed().iter().map(ToString::to_string).collect();
    assert_eq!(places, ["h:6379", "g:6379"], "keys find the same home by TLS");
    assert_eq!(first, redis());
    fs::write(folder.path().join("ca.pem"), other.cert.pem()).unwrap();
    assert_ne!(first, redis(), "another certificate is another store");

    for nothing in [String::new(), "hello".to_owned(), one.signing_key.serialize_pem()] {
        fs::write(folder.path().join("ca.pem"), nothing).unwrap();
        let said = load(&path).unwrap_err().to_string();
        let name = folder.path().join("ca.pem");
        assert!(
            said.contains(&format!(
                ":8:6: error: {name:?} is no PEM file with a certificate;"
            )),
            "{said}"
        );
    }
}
