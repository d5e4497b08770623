//===- ThreadTransport.cpp - Ranks as threads of one process --------------===//

#include "runtime/src/local/ThreadTransport.h"
#include <algorithm>
#include <cstring>
#include <fmt/format.h>
#include <thread>
#include <utility>

using namespace mgq::rt;
using Clock = std::chrono::steady_clock;

// As long as compute threads spin: a peer that is nearly there is met without
// a system call, one that computes is not disturbed.
static constexpr std::chrono::microseconds spinTime{20};
static constexpr size_t leastPosts = 256;

/// Now, as spans count.
static double seconds() {
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

namespace {
/// One side of a message. The rank that made it owns it; the side that comes
/// second writes the bytes and `done`.
struct Post {
  std::byte *data = nullptr;
  int64_t bytes = 0;
  int32_t owner = 0, source = 0, destination = 0, tag = 0;
  bool isSend = false;
  bool isOpen = false;     ///< Begun, not waited for; the owner's.
  int64_t otherBytes = -1; ///< What the other side has.
  mgq_span span = {};      ///< Of the copy.
  std::atomic<bool> done{false};
  Post *next = nullptr; ///< In a mailbox.
};
} // namespace

/// One rank's end: its mailbox of unmatched posts, and what wakes it.
class ThreadTransport::End {
public:
  End(ThreadTransport &group, int32_t rank, int32_t size);

  mgq_transport table;

  /// Wakes the rank to look again at what it waits for.
  void wake() {
    if (!sleeping)
      return;
    {
      std::lock_guard<std::mutex> lock(sleepMutex);
    }
    sleep.notify_one();
  }
  /// Takes all open posts back: from here on no other rank touches this one's
  /// memory.
  void cancelAll();

private:
  int32_t begin(bool isSend, void *data, int64_t bytes, int32_t peer,
                int32_t tag, int64_t *request);
  int32_t wait(int64_t request, mgq_span *span);
  int32_t test(int64_t request, int32_t *done, mgq_span *span);
  int32_t waitAny(const int64_t *requests, int32_t count);
  int32_t findSilent();
  std::string noLife(int32_t waiting, int32_t awaited) const {
    return fmt::format("rank {} waits for rank {}: no sign of life for {} s",
                       waiting, awaited,
                       std::chrono::duration<double>(group.timeout).count());
  }
  int32_t endPost(int64_t request, mgq_span *span);
  int32_t allGather(const void *mine, int64_t bytes, void *all);
  void addPosts();
  Post *match(Post &post);
  bool remove(Post &post);
  void noteCall() {
    lastCall.store(Clock::now().time_since_epoch().count(),
                   std::memory_order_relaxed);
  }
  template <typename Ready>
  int32_t sleepUntil(Ready ready, int32_t peer);
  int32_t copyShown(End &from, int64_t bytes, std::byte *to);
  int32_t fault(std::string text);
  int32_t faultOfAbort() { return fault(group.message); }
  void wakeOthers();

  ThreadTransport &group;
  int32_t rank;
  std::string errorText;

  // Only the rank itself uses these.
  std::deque<Post> posts;
  std::vector<int64_t> unused;

  // Posts of messages to this rank whose other side has not come, oldest first.
  std::mutex mailMutex;
  Post *first = nullptr, *last = nullptr;

  std::mutex sleepMutex;
  std::condition_variable sleep;
  std::atomic<bool> sleeping{false};
  std::atomic<int32_t> waitsFor{-1}; ///< A rank, while it sleeps.
  std::atomic<Clock::rep> lastCall{Clock::now().time_since_epoch().count()};

  // What the rank shows of a gather, and how many it has entered and read.
  std::mutex shownMutex;
  const void *shown = nullptr;
  int64_t shownBytes = 0;
  std::atomic<int64_t> entered{0}, read{0};
};

ThreadTransport::End::End(ThreadTransport &group, int32_t rank, int32_t size)
    : group(group), rank(rank) {
  addPosts();
  table.self = this;
  table.name = "threads";
  table.rank = rank;
  table.size = size;
  table.send = [](void *self, const void *data, int64_t bytes, int32_t peer,
                  int32_t tag, int64_t *request) {
    // A sender's bytes are only read.
    return static_cast<End *>(self)->begin(true, const_cast<void *>(data),
                                           bytes, peer, tag, request);
  };
  table.receive = [](void *self, void *data, int64_t bytes, int32_t peer,
                     int32_t tag, int64_t *request) {
    return static_cast<End *>(self)->begin(false, data, bytes, peer, tag,
                                           request);
  };
  table.wait = [](void *self, int64_t request, mgq_span *span) {
    return static_cast<End *>(self)->wait(request, span);
  };
  table.test = [](void *self, int64_t request, int32_t *done, mgq_span *span) {
    return static_cast<End *>(self)->test(request, done, span);
  };
  table.wait_any = [](void *self, const int64_t *requests, int32_t count) {
    return static_cast<End *>(self)->waitAny(requests, count);
  };
  table.all_gather = [](void *self, const void *mine, int64_t bytes,
                        void *all) {
    return static_cast<End *>(self)->allGather(mine, bytes, all);
  };
  table.error = [](void *self) {
    return static_cast<End *>(self)->errorText.c_str();
  };
  table.abort = [](void *self, const char *text) {
    auto *end = static_cast<End *>(self);
    end->group.abort(end->rank, text);
    end->cancelAll();
  };
  table.close = [](void *) {};
}

/// Takes the oldest post that `post` fits to out of the mailbox, or leaves
/// `post` there.
Post *ThreadTransport::End::match(Post &post) {
  std::lock_guard<std::mutex> lock(mailMutex);
  Post *before = nullptr;
  for (Post *it = first; it; before = it, it = it->next) {
    if (it->isSend == post.isSend || it->source != post.source ||
        it->tag != post.tag)
      continue;
    (before ? before->next : first) = it->next;
    if (last == it)
      last = before;
    return it;
  }
  post.next = nullptr;
  (last ? last->next : first) = &post;
  last = &post;
  return nullptr;
}

/// Takes a post out of the mailbox; false: it is not there.
bool ThreadTransport::End::remove(Post &post) {
  std::lock_guard<std::mutex> lock(mailMutex);
  Post *before = nullptr;
  for (Post *it = first; it; before = it, it = it->next) {
    if (it != &post)
      continue;
    (before ? before->next : first) = it->next;
    if (last == it)
      last = before;
    return true;
  }
  return false;
}

void ThreadTransport::End::cancelAll() {
  {
    std::lock_guard<std::mutex> lock(shownMutex);
    shown = nullptr;
  }
  for (Post &post : posts) {
    if (!post.isOpen)
      continue;
    post.isOpen = false;
    // Not there and not done: another rank is copying.
    if (!post.done && !group.ends[post.destination]->remove(post))
      while (!post.done)
        std::this_thread::yield();
  }
}

int32_t ThreadTransport::End::fault(std::string text) {
  errorText = std::move(text);
  group.abort(rank, errorText.c_str());
  cancelAll();
  return 1;
}

void ThreadTransport::End::wakeOthers() {
  for (const std::unique_ptr<End> &end : group.ends)
    if (end.get() != this)
      end->wake();
}

/// Room for as many messages more as there have been at once, first for
/// leastPosts: how many are open depends on who is faster, and steps should not
/// allocate.
void ThreadTransport::End::addPosts() {
  size_t before = posts.size(), after = std::max(leastPosts, 2 * before);
  posts.resize(after);
  unused.reserve(after);
  for (size_t i = after; i > before; --i)
    unused.push_back(static_cast<int64_t>(i) - 1);
}

int32_t ThreadTransport::End::begin(bool isSend, void *data, int64_t bytes,
                                    int32_t peer, int32_t tag,
                                    int64_t *request) {
  noteCall();
  if (group.abortedBy() >= 0)
    return faultOfAbort();
  if (peer < 0 || peer >= table.size)
    return fault(fmt::format("rank {} has a message for rank {} of {}", rank,
                             peer, table.size));
  if (unused.empty())
    addPosts();
  *request = unused.back();
  unused.pop_back();
  Post &mine = posts[*request];
  mine.data = static_cast<std::byte *>(data);
  mine.bytes = bytes;
  mine.owner = rank;
  mine.source = isSend ? rank : peer;
  mine.destination = isSend ? peer : rank;
  mine.tag = tag;
  mine.isSend = isSend;
  mine.isOpen = true;
  mine.otherBytes = bytes;
  mine.done = false;

  Post *other = group.ends[mine.destination]->match(mine);
  if (!other)
    return 0;
  mine.otherBytes = other->bytes;
  other->otherBytes = bytes;
  mine.span.begin = seconds();
  if (bytes && other->bytes == bytes)
    memcpy(isSend ? other->data : mine.data, isSend ? mine.data : other->data,
           bytes);
  mine.span.end = seconds();
  other->span = mine.span;
  mine.done = true;
  // The owner may use its post again as soon as it sees `done`.
  End &owner = *group.ends[other->owner];
  other->done = true;
  owner.wake();
  return 0;
}

/// Sleeps until ready(). `peer`: who is waited for.
template <typename Ready>
int32_t ThreadTransport::End::sleepUntil(Ready ready, int32_t peer) {
  auto spinEnd = Clock::now() + spinTime;
  do {
    for (int i = 0; i < 16; ++i) {
      if (ready())
        return 0;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
  } while (Clock::now() < spinEnd);
  std::unique_lock<std::mutex> lock(sleepMutex);
  sleeping = true;
  waitsFor = peer;
  int32_t waiting, awaited;
  auto limit = Clock::now() + group.timeout;
  auto wakes = [&] { return ready() || group.abortedBy() >= 0; };
  bool inTime;
  while (!(inTime = sleep.wait_until(lock, limit, wakes))) {
    // Who sleeps waits for somebody in turn: the last of them is at fault.
    waiting = rank;
    awaited = peer;
    for (int32_t hops = 0; hops < table.size; ++hops) {
      int32_t next = group.ends[awaited]->waitsFor;
      if (next < 0)
        break;
      waiting = std::exchange(awaited, next);
    }
    // It computes, maybe.
    auto itsLimit =
        Clock::time_point(Clock::duration(group.ends[awaited]->lastCall)) +
        group.timeout;
    if (itsLimit <= Clock::now())
      break;
    limit = itsLimit;
  }
  sleeping = false;
  if (inTime) {
    waitsFor = -1;
    lock.unlock();
    return ready() ? 0 : faultOfAbort();
  }
  lock.unlock();
  return fault(noLife(waiting, awaited));
}

/// Ends a post that is done.
int32_t ThreadTransport::End::endPost(int64_t request, mgq_span *span) {
  Post &post = posts[request];
  if (span)
    *span = post.span;
  post.isOpen = false;
  unused.push_back(request);
  if (post.bytes == post.otherBytes)
    return 0;
  return fault(fmt::format(
      "rank {} {} {} bytes with tag {}, rank {} has {}", rank,
      post.isSend ? "sends" : "expects", post.bytes, post.tag,
      post.isSend ? post.destination : post.source, post.otherBytes));
}

/// Fails if a rank is silent that others may wait for.
int32_t ThreadTransport::End::findSilent() {
  auto oldest = (Clock::now() - group.timeout).time_since_epoch().count();
  for (int32_t other = 0; other < table.size; ++other)
    if (const End &end = *group.ends[other];
        other != rank && end.waitsFor < 0 && end.lastCall < oldest)
      return fault(noLife(rank, other));
  return 0;
}

int32_t ThreadTransport::End::wait(int64_t request, mgq_span *span) {
  noteCall();
  if (request < 0 && group.abortedBy() >= 0)
    return faultOfAbort();
  if (request < 0)
    return request == -1 ? 0 : findSilent();
  Post &post = posts[request];
  int32_t peer = post.isSend ? post.destination : post.source;
  if (int32_t status = sleepUntil([&] { return post.done.load(); }, peer))
    return status;
  return endPost(request, span);
}

int32_t ThreadTransport::End::test(int64_t request, int32_t *done,
                                   mgq_span *span) {
  noteCall();
  *done = posts[request].done.load();
  if (*done)
    return endPost(request, span);
  return group.abortedBy() >= 0 ? faultOfAbort() : 0;
}

int32_t ThreadTransport::End::waitAny(const int64_t *requests, int32_t count) {
  noteCall();
  const Post &oldest = posts[requests[0]];
  int32_t peer = oldest.isSend ? oldest.destination : oldest.source;
  auto isDone = [&](int64_t request) { return posts[request].done.load(); };
  return sleepUntil(
      [&] { return std::any_of(requests, requests + count, isDone); }, peer);
}

int32_t ThreadTransport::End::copyShown(End &from, int64_t bytes,
                                        std::byte *to) {
  std::unique_lock<std::mutex> lock(from.shownMutex);
  if (!from.shown) { // It has aborted since.
    lock.unlock();
    return faultOfAbort();
  }
  if (from.shownBytes != bytes) {
    int64_t other = from.shownBytes;
    lock.unlock();
    return fault(fmt::format("rank {} gathers {} bytes, rank {} has {}", rank,
                             bytes, from.rank, other));
  }
  if (bytes)
    memcpy(to, from.shown, bytes);
  return 0;
}

int32_t ThreadTransport::End::allGather(const void *mine, int64_t bytes,
                                        void *all) {
  noteCall();
  if (group.abortedBy() >= 0)
    return faultOfAbort();
  int64_t round = entered + 1;
  {
    std::lock_guard<std::mutex> lock(shownMutex);
    shown = mine;
    shownBytes = bytes;
  }
  entered = round;
  wakeOthers();
  auto *to = static_cast<std::byte *>(all);
  for (int32_t i = 0; i < table.size; ++i, to += bytes) {
    End &peer = *group.ends[i];
    if (int32_t status = sleepUntil([&] { return peer.entered >= round; }, i))
      return status;
    if (int32_t status = copyShown(peer, bytes, to))
      return status;
  }
  read = round;
  wakeOthers();
  // `mine` is the caller's again when all have read it.
  for (int32_t i = 0; i < table.size; ++i) {
    End &peer = *group.ends[i];
    if (int32_t status = sleepUntil([&] { return peer.read >= round; }, i))
      return status;
  }
  return 0;
}

/// Of 0: longer than any run.
static Clock::duration limitOf(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(seconds > 0 ? std::min(seconds, 1e8)
                                                : 1e8));
}

ThreadTransport::ThreadTransport(int32_t size, double timeoutSeconds)
    : timeout(limitOf(timeoutSeconds)) {
  for (int32_t rank = 0; rank < size; ++rank)
    ends.push_back(std::make_unique<End>(*this, rank, size));
}

ThreadTransport::~ThreadTransport() = default;

mgq_transport &ThreadTransport::end(int32_t rank) { return ends[rank]->table; }

void ThreadTransport::abort(int32_t rank, const char *text) {
  {
    std::lock_guard<std::mutex> lock(abortMutex);
    if (aborter >= 0)
      return;
    message = text;
    aborter = rank;
  }
  for (const std::unique_ptr<End> &end : ends)
    end->wake();
}
