//! Images shaped like the systems people run: the loader finds libraries where that system has them.

use testbed::write_images;

use crate::shared::{cluster, in_peace, session};

#[tokio::test]
async fn a_loader_finds_libraries_in_every_shape() {
    let _peace = in_peace().await;
    let session = session();
    let ns = session.namespace("shapes").await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let files = write_images(cluster().binaries(), folder.path()).unwrap();
    for (shape, libraries) in [
        ("debian", "/usr/lib/x86_64-linux-gnu"),
        ("ubuntu", "/usr/lib/x86_64-linux-gnu"),
        ("rhel", "/usr/lib64"),
    ] {
        let archive = folder.path().join(format!("{shape}.tar"));
        assert!(files.contains(&archive));
        assert!(folder.path().join(format!("{shape}.Containerfile")).is_file());
        cluster().load_image("node1", &archive).unwrap();
        let pod = format!(
            "apiVersion: v1
kind: Pod
metadata: {{name: {shape}}}
spec:
  nodeName: node1
  restartPolicy: Never
  containers:
  - name: c
    image: localhost/nanogpu-{shape}:1
    imagePullPolicy: Never
    command: [sh, -c, '/lib64/ld-linux-x86-64.so.2 --list {libraries}/libm.so.6; . /etc/os-release; echo $ID; sleep 100000']
"
        );
        session.apply(&ns, &pod).await.unwrap();
        session.running(&ns, shape).await.unwrap();
        let last = format!("{shape}\n");
        let said = session.says(&ns, shape, "c", |said| said.ends_with(&last)).await.unwrap();
        // `/lib64` and `/lib` are links, so a path without `/usr` is the same file.
        let short = libraries.strip_prefix("/usr").unwrap();
        assert!(said.contains("libc.so.6 => ") && said.contains(short), "{said}");
    }
}
