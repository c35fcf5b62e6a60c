//! Decompresses an answer while it arrives.

use std::io::{self, Write};
use std::mem::take;

use flate2::write::GzDecoder;
use hyper::body::{Buf, Bytes};

use super::envelope::Unreadable;

/// A body in gzip's format (RFC 1952).
#[derive(Debug)]
pub(super) struct Gunzip {
    decoder: GzDecoder<Vec<u8>>,
    /// What has arrived and is still compressed.
    compressed: Bytes,
}

impl Default for Gunzip {
    fn default() -> Self {
        Self { decoder: GzDecoder::new(Vec::new()), compressed: Bytes::new() }
    }
}

impl Gunzip {
    /// Takes the next piece that has arrived. [`Self::next`] must have returned all of the piece
    /// before.
    pub(super) fn push(&mut self, piece: Bytes) {
        self.compressed = piece;
    }

    /// The next decompressed bytes, a few 10 kB; `None` if more has to arrive. A piece may
    /// decompress to a thousand times its length.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>, Unreadable> {
        while !self.compressed.is_empty() {
            let used = self.decoder.write(&self.compressed)?;
            if used == 0 {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "more after its end").into());
            }
            self.compressed.advance(used);
            let plain = take(self.decoder.get_mut());
            if !plain.is_empty() {
                return Ok(Some(plain.into()));
            }
        }
        Ok(None)
    }

    /// The rest, when the body has ended. An error if it is not whole.
    pub(super) fn end(self) -> Result<Bytes, Unreadable> {
        Ok(self.decoder.finish()?.into())
    }
}

#[cfg(test)]
mod tests {
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use proptest::prelude::*;

    use super::*;

    fn compressed(plain: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(plain).unwrap();
        encoder.finish().unwrap()
    }

    /// The decompressed content of a body that arrives in these pieces, and its longest piece.
    fn read<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Result<(Vec<u8>, usize), Unreadable> {
        let (mut gunzip, mut plain, mut longest) = (Gunzip::default(), Vec::new(), 0);
        for piece in pieces {
            gunzip.push(Bytes::copy_from_slice(piece));
            while let Some(bytes) = gunzip.next()? {
                longest = longest.max(bytes.len());
                plain.extend_from_slice(&bytes);
            }
        }
        plain.extend_from_slice(&gunzip.end()?);
        Ok((plain, longest))
    }

    proptest! {
        #[test]
        fn a_body_is_the_same_in_whatever_pieces_it_arrives(
            words in proptest::collection::vec(0_u8..4, 0..20_000),
            piece in 1_usize..5_000,
        ) {
            prop_assert_eq!(read(compressed(&words).chunks(piece)).unwrap().0, words);
        }
    }

    #[test]
    fn what_grows_a_thousand_times_comes_in_small_pieces() {
        const LENGTH: usize = 64 << 20;
        let body = compressed(&vec![0; LENGTH]);
        assert!(body.len() < LENGTH / 200, "{}", body.len());
        let (plain, longest) = read(std::iter::once(&*body)).unwrap();
        assert_eq!(plain.len(), LENGTH);
        assert!(longest <= 64 << 10, "{longest}");
    }

    #[test]
    fn what_is_damaged_is_an_error() {
        let body = compressed(&(0..100_000_u32).flat_map(u32::to_be_bytes).collect::<Vec<_>>());
        let whole = |body: &[u8]| read(body.chunks(1000)).map(|(plain, _)| plain.len());
        assert_eq!(whole(&body).unwrap(), 400_000);
        for length in [0, 5, 10, body.len() / 2, body.len() - 8, body.len() - 1] {
            assert!(whole(&body[..length]).is_err(), "the first {length} bytes");
        }
        for byte in [0, body.len() / 2, body.len() - 6, body.len() - 1] {
            let mut damaged = body.clone();
            damaged[byte] ^= 1;
            assert!(whole(&damaged).is_err(), "byte {byte}");
        }
        let more = [&*body, b"more"].concat();
        assert!(whole(&more).is_err());
    }
}
