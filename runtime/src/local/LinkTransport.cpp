//===- LinkTransport.cpp - An artificial link between ranks ---------------===//

#include "runtime/src/local/LinkTransport.h"
#include "runtime/src/common/Error.h"
#include "runtime/src/common/Trace.h"
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <thread>

using namespace mgq::rt;

// How often a rank that sleeps says that it is alive.
static constexpr double pulseSeconds = 0.05;
// How often arrivals are looked for while the time of others is known.
static constexpr double pollSeconds = 50e-6;

static double numberOf(const std::string &text, const std::string &all) {
  double value = 0;
  const char *end = text.data() + text.size();
  auto [stop, code] = std::from_chars(text.data(), end, value);
  if (code != std::errc() || stop != end || !(value >= 0) || std::isinf(value))
    failUsage("MGQ_TEST_LINK is '{}': '{}' is not a number from 0", all, text);
  return value;
}

std::optional<LinkModel> mgq::rt::linkOfEnvironment() {
  const char *given = getenv("MGQ_TEST_LINK");
  if (!given || !*given)
    return std::nullopt;
  std::string all = given;
  LinkModel link;
  for (size_t at = 0; at <= all.size();) {
    size_t comma = std::min(all.find(',', at), all.size());
    std::string word = all.substr(at, comma - at);
    at = comma + 1;
    if (word == "replicas-only")
      link.replicasOnly = true;
    else if (word.rfind("delay=", 0) == 0)
      link.delay = numberOf(word.substr(6), all);
    else if (word.rfind("bandwidth=", 0) == 0)
      link.bandwidth = numberOf(word.substr(10), all);
    else
      failUsage("MGQ_TEST_LINK is '{}', expected delay=SECONDS, "
                "bandwidth=BYTES_PER_SECOND and replicas-only, with commas",
                all);
  }
  return link;
}

LinkTransport::LinkTransport(mgq_transport &inner, const LinkModel &link,
                             int32_t stages)
    : inner(inner), outer(inner), link(link), stages(stages),
      freeAt(inner.size) {
  outer.self = this;
  outer.send = [](void *self, const void *data, int64_t bytes, int32_t peer,
                  int32_t tag, int64_t *request) {
    // A sender's bytes are only read.
    return static_cast<LinkTransport *>(self)->begin(
        true, const_cast<void *>(data), bytes, peer, tag, request);
  };
  outer.receive = [](void *self, void *data, int64_t bytes, int32_t peer,
                     int32_t tag, int64_t *request) {
    return static_cast<LinkTransport *>(self)->begin(false, data, bytes, peer,
                                                     tag, request);
  };
  outer.wait = [](void *self, int64_t request, mgq_span *span) {
    return static_cast<LinkTransport *>(self)->wait(request, span);
  };
  outer.test = [](void *self, int64_t request, int32_t *done, mgq_span *span) {
    return static_cast<LinkTransport *>(self)->test(request, done, span);
  };
  outer.wait_any = [](void *self, const int64_t *requests, int32_t count) {
    return static_cast<LinkTransport *>(self)->waitAny(requests, count);
  };
  outer.all_gather = [](void *self, const void *mine, int64_t bytes,
                        void *all) {
    return static_cast<LinkTransport *>(self)->allGather(mine, bytes, all);
  };
  outer.error = [](void *self) {
    mgq_transport &of = static_cast<LinkTransport *>(self)->inner;
    return of.error(of.self);
  };
  outer.abort = [](void *self, const char *message) {
    mgq_transport &of = static_cast<LinkTransport *>(self)->inner;
    of.abort(of.self, message);
  };
  outer.close = [](void *self) {
    mgq_transport &of = static_cast<LinkTransport *>(self)->inner;
    of.close(of.self);
  };
}

bool LinkTransport::isLinked(int32_t peer) const {
  return peer != inner.rank &&
         (!link.replicasOnly || peer / stages != inner.rank / stages);
}

int32_t LinkTransport::begin(bool isSend, void *data, int64_t bytes,
                             int32_t peer, int32_t tag, int64_t *request) {
  if (unused.empty()) {
    messages.emplace_back();
    unused.reserve(messages.size());
    waited.reserve(messages.size());
    unused.push_back(static_cast<int64_t>(messages.size()) - 1);
  }
  *request = unused.back();
  unused.pop_back();
  Open &open = messages[*request];
  open.isSend = isSend;
  open.linked = peer >= 0 && peer < inner.size && isLinked(peer);
  open.part = open.linked ? 0 : 1;
  if (open.linked && isSend) {
    double start = std::max(secondsNow(), freeAt[peer]);
    double seconds =
        link.bandwidth > 0 ? static_cast<double>(bytes) / link.bandwidth : 0;
    open.ready = freeAt[peer] = start + seconds;
    open.times = {start, open.ready + link.delay};
  }
  auto post = [&](void *place, int64_t size, int64_t *part) {
    return isSend ? inner.send(inner.self, place, size, peer, tag, part)
                  : inner.receive(inner.self, place, size, peer, tag, part);
  };
  if (open.linked)
    if (int32_t status = post(&open.times, sizeof open.times, &open.parts[0]))
      return status;
  return post(data, bytes, &open.parts[1]);
}

/// Ends the parts that are done.
int32_t LinkTransport::advance(Open &open) {
  for (; open.part < 2; ++open.part) {
    mgq_span span;
    int32_t done = 0;
    if (int32_t status =
            inner.test(inner.self, open.parts[open.part], &done, &span))
      return status;
    if (!done)
      return 0;
    if (!open.linked)
      open.times = span;
  }
  if (!open.linked)
    open.ready = 0;
  else if (!open.isSend)
    open.ready = open.times.end;
  return 0;
}

void LinkTransport::end(int64_t request, mgq_span *span) {
  const Open &open = messages[request];
  if (span)
    *span = {open.times.begin, open.linked ? open.ready : open.times.end};
  unused.push_back(request);
}

int32_t LinkTransport::sleepUntil(double time) {
  for (double now; (now = secondsNow()) < time;) {
    std::this_thread::sleep_for(
        std::chrono::duration<double>(std::min(time - now, pulseSeconds)));
    if (int32_t status = inner.wait(inner.self, -1, nullptr))
      return status;
  }
  return 0;
}

int32_t LinkTransport::wait(int64_t request, mgq_span *span) {
  if (request < 0)
    return inner.wait(inner.self, request, nullptr);
  Open &open = messages[request];
  for (;;) {
    if (int32_t status = advance(open))
      return status;
    if (open.part == 2)
      break;
    if (int32_t status = inner.wait_any(inner.self, &open.parts[open.part], 1))
      return status;
  }
  if (int32_t status = sleepUntil(open.ready))
    return status;
  end(request, span);
  return 0;
}

int32_t LinkTransport::test(int64_t request, int32_t *done, mgq_span *span) {
  Open &open = messages[request];
  *done = 0;
  if (int32_t status = advance(open))
    return status;
  *done = open.part == 2 && secondsNow() >= open.ready;
  if (*done)
    end(request, span);
  return 0;
}

int32_t LinkTransport::waitAny(const int64_t *requests, int32_t count) {
  double earliest = HUGE_VAL;
  waited.clear();
  for (int32_t i = 0; i < count; ++i) {
    Open &open = messages[requests[i]];
    if (int32_t status = advance(open))
      return status;
    if (open.part == 2)
      earliest = std::min(earliest, open.ready);
    else
      waited.push_back(open.parts[open.part]);
  }
  if (earliest == HUGE_VAL)
    return inner.wait_any(inner.self, waited.data(),
                          static_cast<int32_t>(waited.size()));
  // What is on its way ends this; what has not begun may do so at any time.
  double latest = secondsNow() + (waited.empty() ? pulseSeconds : pollSeconds);
  return sleepUntil(std::min(earliest, latest));
}

int32_t LinkTransport::allGather(const void *mine, int64_t bytes, void *all) {
  if (int32_t status = inner.all_gather(inner.self, mine, bytes, all))
    return status;
  int32_t others = inner.size - 1;
  if (others == 0 || (link.replicasOnly && inner.size <= stages))
    return 0;
  double seconds =
      link.bandwidth > 0 ? static_cast<double>(bytes) / link.bandwidth : 0;
  return sleepUntil(secondsNow() + seconds + link.delay);
}
