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

use super::envelope::{self, Encoding, MAX_OBJECT_BYTES, Unreadable, refusal};
use super::failure::Failure;
use super::gunzip::Gunzip;
use super::traffic::Traffic;

/// The most bytes of a refusal that are read: whatever explains it comes first.
const REFUSAL: usize = 64 << 10;

/// An answer whose body is still arriving.
pub(super) struct Reply {
    pub(super) encoding: Encoding,
    body: Body,
    /// Set if the server has compressed the body.
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
        let content_encoding = header(&head.headers, &CONTENT_ENCODING);
        let gunzip = content_encoding.eq_ignore_ascii_case("gzip").then(Gunzip::default);
        let is_readable = gunzip.is_some() || matches!(content_encoding, "" | "identity");
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
        if !is_readable {
            let unreadable = Unreadable::ContentEncoding(content_encoding.to_owned());
            return Err(Failure::Answer(unreadable));
        }
        let content_type = header(&head.headers, &CONTENT_TYPE);
        reply.encoding = Encoding::of_content_type(content_type).map_err(Failure::Answer)?;
        traffic.answered(reply.encoding);
        Ok(reply)
    }

    /// The next piece of the decompressed body; `None` at its end.
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
            if body.len() > 4 * MAX_OBJECT_BYTES {
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

#[cfg(test)]
mod tests {
    use hyper::{Response, StatusCode};

    use super::*;

    /// The result of reading an answer with this status and this `Content-Encoding`.
    fn answered(status: StatusCode, content_encoding: &'static str) -> Result<Vec<u8>, Failure> {
        let answer = move |_: Request<Body>| async move {
            let answer =
                Response::builder().status(status).header(CONTENT_TYPE, "application/json");
            let body = Body::from(b"{}".to_vec());
            answer.header(CONTENT_ENCODING, content_encoding).body(body)
        };
        let request = Request::get("/api/v1/services").body(Vec::new()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let client = Client::new(tower::service_fn(answer), "default");
            Reply::to(&client, request, &Arc::default()).await?.whole().await
        })
    }

    #[test]
    fn an_unknown_compression_is_named_and_hides_no_refusal() {
        assert_eq!(answered(StatusCode::OK, "identity").unwrap(), b"{}");
        let error = answered(StatusCode::OK, "br").unwrap_err();
        let Failure::Answer(error) = error else { panic!("{error:?}") };
        assert_eq!(error.to_string(), "it is compressed, but not by gzip: \"br\"");
        for content_encoding in ["br", "gzip", "identity"] {
            let error = answered(StatusCode::FORBIDDEN, content_encoding).unwrap_err();
            assert!(matches!(error, Failure::Refused(status) if status.code == 403));
        }
    }
}
