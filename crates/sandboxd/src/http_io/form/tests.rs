//! Forms cut at every position, compared with the results of another parser.

use super::*;
use futures::stream;
use proptest::prelude::*;
use std::convert::Infallible;

type Parts = Vec<(Option<String>, Option<String>, Vec<u8>)>;

/// A body that arrives in pieces of these sizes, repeated.
fn pieces(body: &[u8], sizes: &[usize]) -> Vec<Result<Bytes, Infallible>> {
    let mut rest = Bytes::copy_from_slice(body);
    let mut sizes = sizes.iter().cycle();
    let mut pieces = Vec::new();
    while !rest.is_empty() {
        let size = sizes.next().map_or(1, |size| *size).clamp(1, rest.len());
        pieces.push(Ok(rest.split_to(size)));
    }
    pieces
}

fn request(kind: &str, body: &[u8], sizes: &[usize]) -> Request<Body> {
    let body = Body::from_stream(stream::iter(pieces(body, sizes)));
    Request::builder().header(header::CONTENT_TYPE, kind).body(body).expect("a request")
}

async fn ours(body: &[u8], sizes: &[usize]) -> Result<Parts, FormError> {
    let mut form = Form::of(request("multipart/form-data; boundary=b", body, sizes)).expect("a form");
    let mut parts = Vec::new();
    while let Some(part) = form.next().await? {
        let mut content = Vec::new();
        while let Some(bytes) = form.chunk().await? {
            assert!(!bytes.is_empty());
            content.extend_from_slice(&bytes);
        }
        parts.push((part.name, part.file_name, content));
    }
    Ok(parts)
}

async fn theirs(body: &[u8]) -> Result<Parts, multer::Error> {
    let mut form = multer::Multipart::new(stream::iter(pieces(body, &[body.len()])), "b");
    let mut parts = Vec::new();
    while let Some(field) = form.next_field().await? {
        let (name, file) = (field.name().map(str::to_owned), field.file_name().map(str::to_owned));
        parts.push((name, file, field.bytes().await?.to_vec()));
    }
    Ok(parts)
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(future)
}

/// Valid and broken fragments of forms.
fn fragments() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => prop_oneof![
            Just("\r\n--b\r\n"), Just("--b\r\n"), Just("\r\n--b--\r\n"), Just("\r\n--b \t\r\n"), Just("\r\n--"), Just("\r"), Just("\r\n"),
            Just("\r\n\r\n"), Just("--b"), Just("Content-Disposition: form-data; name=\"file\"; filename=\"x\"\r\n\r\n"),
            Just("content-disposition: form-data; name=other\r\nX: y\r\n\r\n"),
        ].prop_map(|text| text.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..20),
    ]
}

proptest! {
    #[test]
    fn another_reader_finds_the_same(fragments in prop::collection::vec(fragments(), 0..12), sizes in prop::collection::vec(1_usize..9, 1..4)) {
        let body: Vec<u8> = std::iter::once(b"--b\r\n".to_vec()).chain(fragments).flatten().collect();
        let (ours, theirs) = block_on(async { (ours(&body, &sizes).await, theirs(&body).await) });
        match (ours, theirs) {
            (Ok(ours), Ok(theirs)) => prop_assert_eq!(ours, theirs),
            (Err(_), Err(_)) => {}
            (ours, theirs) => prop_assert!(false, "{:?} beside {:?} of {:?}", ours, theirs, String::from_utf8_lossy(&body)),
        }
    }

    #[test]
    fn content_arrives_whole_however_it_is_cut(
        content in prop::collection::vec(prop_oneof![Just(b'\r'), Just(b'\n'), Just(b'-'), Just(b'a'), any::<u8>()], 0..200),
        sizes in prop::collection::vec(1_usize..40, 1..4),
    ) {
        prop_assume!(memchr::memmem::find(&content, b"\r\n--b").is_none());
        let head = b"preamble\r\n--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"x\"\r\n\r\n";
        let body = [head, content.as_slice(), b"\r\n--b--\r\nepilogue"].concat();
        let parts = block_on(ours(&body, &sizes)).expect("a form");
        prop_assert_eq!(parts, vec![(Some("file".to_owned()), Some("x".to_owned()), content)]);
    }
}

/// Content is passed on in the memory it was read into.
#[test]
fn content_is_not_copied() {
    let content = Bytes::from(vec![b'x'; 100_000]);
    let parts = [
        Bytes::from_static(b"--b\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\n"),
        content.clone(),
        Bytes::from_static(b"\r\n--b--\r\n"),
    ];
    let body = Body::from_stream(stream::iter(parts.map(Ok::<_, Infallible>)));
    let request = Request::builder().header(header::CONTENT_TYPE, "multipart/form-data; boundary=\"b\"");
    let mut form = Form::of(request.body(body).expect("a request")).expect("a form");
    block_on(async {
        form.next().await.expect("a form").expect("a part");
        let got = form.chunk().await.expect("a form").expect("content");
        assert_eq!((got.as_ptr(), got.len()), (content.as_ptr(), content.len()));
        assert_eq!(form.chunk().await.expect("a form"), None);
        assert_eq!(form.next().await.expect("a form"), None);
    });
}

#[test]
fn only_forms_are_forms_and_heads_are_bounded() {
    for kind in [
        "multipart/form-data",
        "multipart/form-data; boundary=",
        "text/plain; boundary=b",
        ";;=\"",
        "multipart/mixed; boundary=b",
    ] {
        assert!(Form::of(request(kind, b"", &[1])).is_err(), "{kind}");
    }
    let large = [b"--b\r\nX: ", [b'x'; MAX_HEAD + 1].as_slice()].concat();
    assert!(matches!(block_on(ours(&large, &[4096])), Err(FormError::LargeHead)));
    for broken in ["", "--b", "--b\r\n", "--b\r\nX: y\r\n\r\nz", "--bxx\r\n\r\n"] {
        assert!(matches!(block_on(ours(broken.as_bytes(), &[3])), Err(FormError::Incomplete)), "{broken:?}");
    }
}
