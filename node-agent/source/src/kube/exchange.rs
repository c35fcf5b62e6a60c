//! One request and its answer, as it arrives.

use std::sync::Arc;

use http_body_util::BodyExt;
use hyper::Request;
use hyper::body::Bytes;
use hyper::header::{
    ACCEPT, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER,
};
use kube::Client;
use kube::client::Body;

use super::envelope::{self, Encoding, LONGEST, Unreadable, refusal};
use super::failure::Failure;
use super::gunzip::Gunzip;
use super::traffic::Traffic;

/// The most bytes of a refusal that are read: whatever explains it comes first.
const REFUSAL: usize = 64 << 10;

/// An answer whose body is still arriving.
pub(super) struct Reply {
    pub(super) encoding: Encoding,
    body: Body,
    /// Where the server has compressed the body.
    gunzip: Option<Gunzip>,
    traffic: Arc<Traffic>,
}

impl Reply {
    /// Sends a request and takes the head of the answer.
    pub(super) async fn to(
        client: &Client,
        request: Request<Vec<u8>>,
        traffic: &Arc<Traffic>,
    ) -> Result<Self, Failure> {
        Self::accepting(envelope::ACCEPT, client, request, traffic).await
    }

    /// As [`Self::to`], for an answer of one of these media types.
    pub(super) async fn accepting(
        accepted: &'static str,
        client: &Client,
        request: Request<Vec<u8>>,
        traffic: &Arc<Traffic>,
    ) -> Result<Self, Failure> {
        let mut request = request.map(Body::from);
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static(accepted));
        let (head, body) = client.send(request).await?.into_parts();
        let gunzip = match header(&head.headers, &CONTENT_ENCODING) {
            "" | "identity" => None,
            "gzip" => Some(Gunzip::default()),
            other => {
                return Err(Failure::Answer(Unreadable::ContentEncoding(other.to_owned())));
            }
        };
        let encoding = Encoding::Json;
        let mut reply = Self { encoding, body, gunzip, traffic: traffic.clone() };
        if !head.status.is_success() {
            let retry_after = header(&head.headers, &RETRY_AFTER).parse().unwrap_or_default();
            // The code counts even if the rest does not arrive.
            let body = reply.first(REFUSAL).await;
            let reason = head.status.canonical_reason().unwrap_or_default();
            let status = refusal(head.status.as_u16(), reason, retry_after, &body);
            return Err(Failure::Refused(Box::new(status)));
        }
        let content_type = header(&head.headers, &CONTENT_TYPE);
        reply.encoding = Encoding::of_content_type(content_type).map_err(Failure::Answer)?;
        traffic.answered(reply.encoding);
        Ok(reply)
    }

    /// The next piece of the body, which is not compressed any more; `None` at its end.
    pub(super) async fn piece(&mut self) -> Result<Option<Bytes>, Failure> {
        loop {
            if let Some(gunzip) = &mut self.gunzip
                && let Some(bytes) = gunzip.next().map_err(Failure::Answer)?
            {
                return Ok(Some(bytes));
            }
            let Some(frame) = self.body.frame().await else { break };
            let Ok(bytes) = frame?.into_data() else { continue };
            self.traffic.received(bytes.len());
            match &mut self.gunzip {
                Some(gunzip) => gunzip.push(bytes),
                None => return Ok(Some(bytes)),
            }
        }
        let rest = self.gunzip.take().map(Gunzip::end).transpose().map_err(Failure::Answer)?;
        Ok(rest.filter(|bytes| !bytes.is_empty()))
    }

    /// The whole body, for answers about few objects.
    pub(super) async fn whole(mut self) -> Result<Vec<u8>, Failure> {
        let mut body = Vec::new();
        while let Some(piece) = self.piece().await? {
            body.extend_from_slice(&piece);
            if body.len() > 4 * LONGEST {
                return Err(Failure::Answer(Unreadable::TooLarge));
            }
        }
        Ok(body)
    }

    async fn first(&mut self, length: usize) -> Vec<u8> {
        let mut body = Vec::new();
        while body.len() < length
            && let Ok(Some(piece)) = self.piece().await
        {
            body.extend_from_slice(&piece[..piece.len().min(length - body.len())]);
        }
        body
    }
}

fn header<'h>(headers: &'h HeaderMap, name: &HeaderName) -> &'h str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().trim()
}
