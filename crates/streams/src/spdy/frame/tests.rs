//! Frames round-trip through any split of their bytes, and no input makes the reader panic or buffer without bound.

use proptest::prelude::*;

use super::*;

fn read_in_slices(bytes: &[u8], slice: usize) -> Result<Vec<Frame>, SpdyError> {
    let mut reader = FrameReader::default();
    let mut frames = Vec::new();
    for piece in bytes.chunks(slice.max(1)) {
        reader.push(&[]);
        reader.push(piece);
        while let Some(frame) = reader.next()? {
            frames.push(frame);
        }
    }
    Ok(frames)
}

/// Joins the chunks of data frames, which may be split anywhere.
fn joined(frames: Vec<Frame>) -> Vec<Frame> {
    let mut out: Vec<Frame> = Vec::new();
    for frame in frames {
        if let (Frame::Data { id, payload, fin }, Some(Frame::Data { id: last_id, payload: last, fin: last_fin })) =
            (&frame, out.last_mut())
            && id == last_id
            && !*last_fin
        {
            let mut both = BytesMut::from(&last[..]);
            both.extend_from_slice(payload);
            *last = both.freeze();
            *last_fin = *fin;
            continue;
        }
        out.push(frame);
    }
    out
}

fn any_headers() -> impl Strategy<Value = Headers> {
    prop::collection::vec(("[a-z-]{1,12}", "[ -~]{0,40}"), 0..5)
}

fn any_frame() -> impl Strategy<Value = Frame> {
    let id = 1u32..0x7fff_ffff;
    prop_oneof![
        (id.clone(), any_headers(), any::<bool>()).prop_map(|(id, headers, fin)| Frame::SynStream { id, headers, fin }),
        (id.clone(), any_headers(), any::<bool>()).prop_map(|(id, headers, fin)| Frame::SynReply { id, headers, fin }),
        (id.clone(), 1u32..9).prop_map(|(id, status)| Frame::RstStream { id, status }),
        any::<u32>().prop_map(Frame::Ping),
        id.clone().prop_map(|last_stream| Frame::GoAway { last_stream }),
        (id, prop::collection::vec(any::<u8>(), 0..300), any::<bool>()).prop_map(|(id, payload, fin)| Frame::Data {
            id,
            payload: payload.into(),
            fin
        }),
    ]
}

proptest! {
    /// D-223: frames may arrive in chunks of any size, including single bytes and empty chunks.
    #[test]
    fn frames_survive_any_slicing(frames in prop::collection::vec(any_frame(), 0..12), slice in 1usize..64) {
        let mut writer = FrameWriter::default();
        let mut bytes = Vec::new();
        for frame in &frames {
            bytes.extend_from_slice(&writer.encode(frame).unwrap());
        }
        prop_assert_eq!(joined(read_in_slices(&bytes, slice).unwrap()), joined(frames));
    }

    #[test]
    fn arbitrary_bytes_never_panic_and_buffering_is_bounded(bytes in prop::collection::vec(any::<u8>(), 0..4096), slice in 1usize..512) {
        let mut reader = FrameReader::default();
        for piece in bytes.chunks(slice) {
            reader.push(piece);
            while let Ok(Some(_)) = reader.next() {}
            prop_assert!(reader.buffer.len() <= MAX_CONTROL_FRAME + HEADER_LENGTH + slice);
        }
    }

    #[test]
    fn a_damaged_connection_never_panics(
        frames in prop::collection::vec(any_frame(), 1..8),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut writer = FrameWriter::default();
        let mut bytes = Vec::new();
        for frame in &frames {
            bytes.extend_from_slice(&writer.encode(frame).unwrap());
        }
        for (index, value) in flips {
            let at = index.index(bytes.len());
            bytes[at] = value;
        }
        let _ = read_in_slices(&bytes, 17);
    }
}

#[test]
fn a_sixteen_megabyte_data_frame_is_never_buffered_whole() {
    let mut reader = FrameReader::default();
    reader.push(&[0, 0, 0, 1, 0x01, 0xff, 0xff, 0xff]);
    let (mut total, piece) = (0, vec![7u8; 4096]);
    while total < 0x00ff_ffff {
        let length = piece.len().min(0x00ff_ffff - total);
        reader.push(&piece[..length]);
        total += length;
        let frame = reader.next().unwrap().expect("each piece comes out at once");
        assert_eq!(
            frame,
            Frame::Data { id: 1, payload: Bytes::copy_from_slice(&piece[..length]), fin: total == 0x00ff_ffff }
        );
        assert!(reader.buffer.is_empty());
    }
}

#[test]
fn settings_and_window_updates_are_skipped() {
    let mut reader = FrameReader::default();
    reader.push(&control(4, false, &[0, 0, 0, 0]));
    reader.push(&control(9, false, &two_words(1, 65536)));
    reader.push(&control(PING, false, &7u32.to_be_bytes()));
    assert_eq!(reader.next().unwrap(), Some(Frame::Ping(7)));
    assert_eq!(reader.next().unwrap(), None);
}

#[test]
fn another_version_and_an_oversized_control_frame_are_refused() {
    let mut reader = FrameReader::default();
    reader.push(&[0x80, 2, 0, 1, 0, 0, 0, 0]);
    assert!(matches!(reader.next(), Err(SpdyError::Version(2))));
    let mut reader = FrameReader::default();
    reader.push(&[0x80, 3, 0, 1, 0, 0xff, 0xff, 0xff]);
    assert!(matches!(reader.next(), Err(SpdyError::FrameTooLong(_))));
}
