//! Decoding of bodies as Go clients encode them, and of invalid bodies.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn tagged(number: u8, wire_type: u8) -> u8 {
    number << 3 | wire_type
}

fn bytes_field(number: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![tagged(number, 2)];
    let mut length = payload.len();
    while length >= 0x80 {
        out.push((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend_from_slice(payload);
    out
}

fn number_field(number: u8, value: u8) -> Vec<u8> {
    vec![tagged(number, 0), value]
}

fn body(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let type_meta = [bytes_field(1, api_version.as_bytes()), bytes_field(2, kind.as_bytes())].concat();
    [MAGIC.to_vec(), bytes_field(1, &type_meta), bytes_field(2, raw), bytes_field(3, b""), bytes_field(4, b"")].concat()
}

#[test]
fn a_token_request_reads_as_its_json_form() {
    let bound = [bytes_field(1, b"Pod"), bytes_field(2, b"v1"), bytes_field(3, b"p"), bytes_field(4, b"")].concat();
    let spec = [bytes_field(1, b"vault"), bytes_field(3, &bound), vec![tagged(4, 0), 0x84, 0x07]].concat();
    let raw = [bytes_field(1, b""), bytes_field(2, &spec)].concat();
    assert_eq!(
        decode(&body("authentication.k8s.io/v1", "TokenRequest", &raw)).unwrap(),
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": {},
            "spec": {"audiences": ["vault"], "expirationSeconds": 900, "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "p"}}})
    );
}

#[test]
fn delete_options_keep_what_is_set_and_nothing_else() {
    let raw = [number_field(1, 0), bytes_field(2, &bytes_field(1, b"u")), bytes_field(4, b"Foreground")].concat();
    assert_eq!(
        decode(&body("apps/v1", "DeleteOptions", &raw)).unwrap(),
        json!({"apiVersion": "apps/v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0, "preconditions": {"uid": "u"}, "propagationPolicy": "Foreground"})
    );
}

#[test]
fn secrets_volumes_quantities_and_times_take_their_json_forms() {
    let entry = [bytes_field(1, b"password"), bytes_field(2, b"\xff\x00")].concat();
    let metadata = [bytes_field(1, b"s"), bytes_field(8, &number_field(1, 60))].concat();
    let raw = [bytes_field(1, &metadata), bytes_field(2, &entry), bytes_field(3, b"Opaque")].concat();
    let secret = decode(&body("v1", "Secret", &raw)).unwrap();
    assert_eq!(secret["data"]["password"], "/wA=");
    assert_eq!(secret["metadata"], json!({"name": "s", "creationTimestamp": "1970-01-01T00:01:00Z"}));
    let source = bytes_field(2, &bytes_field(1, b""));
    let volume = [bytes_field(1, b"scratch"), bytes_field(2, &source)].concat();
    let limit = [bytes_field(1, b"cpu"), bytes_field(2, &bytes_field(1, b"500m"))].concat();
    let container = [bytes_field(1, b"main"), bytes_field(2, b""), bytes_field(8, &bytes_field(1, &limit))].concat();
    let spec = [bytes_field(1, &volume), bytes_field(2, &container), number_field(11, 0), number_field(4, 0)].concat();
    let pod = decode(&body("v1", "Pod", &bytes_field(2, &spec))).unwrap();
    assert_eq!(
        pod["spec"],
        json!({"volumes": [{"name": "scratch", "emptyDir": {}}],
            "containers": [{"name": "main", "resources": {"limits": {"cpu": "500m"}}}],
            "terminationGracePeriodSeconds": 0})
    );
}

#[test]
fn other_kinds_and_damaged_bodies_are_refused() {
    assert_eq!(decode(&body("example.com/v1", "Thing", b"")).unwrap_err().code, 415);
    assert_eq!(decode(&body("v1", "Unicorn", b"")).unwrap_err().code, 415);
    assert_eq!(decode(b"{}").unwrap_err().code, 400);
    assert_eq!(decode(&body("v1", "Pod", &[0xff; 12])).unwrap_err().code, 400);
    assert_eq!(decode(&body("v1", "Pod", &[tagged(2, 2), 100])).unwrap_err().code, 400);
}

proptest! {
    #[test]
    fn arbitrary_bodies_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), kind in 0usize..4) {
        let _ = decode(&bytes);
        let kinds = [("v1", "Pod"), ("v1", "Service"), ("authorization.k8s.io/v1", "SubjectAccessReview"), ("v1", "DeleteOptions")];
        let _ = decode(&body(kinds[kind].0, kinds[kind].1, &bytes));
    }
}
