//===- TcpTransport.cpp - Ranks as processes of torchrun or Slurm ---------===//
//
// The plugin libmgq_tcp.so: a socket between any two ranks, and one
// communication thread that polls them all. A short message goes at once; one
// that nobody waits for yet is kept. A long one is offered, and goes in pieces
// when its receiver has a place for it, so that no rank needs memory that its
// plan does not know of. Other frames go between the pieces.
//
//===----------------------------------------------------------------------===//

#include "runtime/src/common/Error.h"
#include "runtime/src/tcp/Connection.h"
#include "runtime/src/tcp/Mailbox.h"
#include "runtime/src/tcp/Rendezvous.h"
#include <cstring>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

using namespace mgq::tcp;
using mgq::process::Beat;
using mgq::process::Command;
using mgq::process::ProcessTransport;
using mgq::process::seconds;

// Longer messages are offered.
static constexpr int64_t mostWhole = 1 << 16;
static constexpr int64_t pieceBytes = 1 << 20;
// How long a rank that fails waits for the others to hear of it.
static constexpr std::chrono::seconds heardTime{2};
// How long this rank may take to notice that all is over: a few kernels.
static constexpr std::chrono::seconds noticeTime{5};
// Programs have no such tag.
static constexpr int32_t gatherTag = -1;

namespace {
class TcpTransport : public ProcessTransport, private FrameHandler {
public:
  explicit TcpTransport(double timeoutSeconds)
      : ProcessTransport("tcp", timeoutSeconds),
        bell(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

private:
  bool start() override;
  void loop() override;
  void wake() override;

  void sleep();
  void begin(int64_t index);
  void beginSend(int64_t index, Command &command);
  void beginReceive(int64_t index, Command &command);
  void beginGather(int64_t index, Command &command);
  void tellAll(const Frame &frame, const void *data = nullptr);
  void beat();
  void stop(const std::string &text, bool byPeer);
  void lose(int32_t peer);
  bool isOver() const;
  bool allHeard() const;

  std::byte *arrives(int32_t peer, const Frame &frame) override;
  void arrived(int32_t peer, const Frame &frame) override;
  void left(int32_t peer, const Outgoing &outgoing) override;
  void arrivedWhole(int32_t peer, const Frame &frame);
  void meetOffer(int32_t peer, const Post &post, int64_t bytes, int64_t sender);
  bool fits(int32_t peer, const Post &post, int64_t bytes);
  void endPart(Command &command, int64_t amount = 1);

  std::vector<std::byte> takeBuffer(int64_t bytes);
  void recycle(std::vector<std::byte> buffer) {
    spare.push_back(std::move(buffer));
  }

  /// What one peer is doing.
  struct Peer {
    Connection connection;
    Mailbox mailbox;
    std::optional<Post> post;    ///< Of the message that arrives.
    std::vector<std::byte> data; ///< Where it goes if there is none.
    bool heard = false, bye = false;
  };

  Socket bell; ///< The rank rings it.
  std::vector<Peer> peers;
  std::vector<std::vector<std::byte>> spare;
  std::vector<pollfd> polled;
  std::vector<int32_t> polledPeers;
  std::vector<int64_t> taken;
  std::vector<Command *> finished;
  Command *aborting = nullptr;
  Clock::time_point heardLimit, noticeLimit = Clock::time_point::max();
  bool closing = false;
};
} // namespace

bool TcpTransport::start() {
  prctl(PR_SET_TIMERSLACK, 1000UL, 0, 0, 0);
  try {
    mgq::rt::LaunchEnvironment place = mgq::rt::launchEnvironment();
    std::vector<int> sockets = meet(place, timeout);
    table.rank = place.rank;
    table.size = place.size;
    peers = std::vector<Peer>(sockets.size());
    for (int32_t peer = 0; peer < table.size; ++peer)
      if (peer != table.rank)
        peers[peer].connection = Connection(peer, sockets[peer]);
    return true;
  } catch (const std::exception &error) {
    fail(error.what());
    return false;
  }
}

void TcpTransport::wake() {
  uint64_t one = 1;
  // A bell that cannot be rung any more is ringing.
  [[maybe_unused]] ssize_t size = write(bell.get(), &one, sizeof one);
}

void TcpTransport::loop() {
  while (!isOver()) {
    takeCommands(taken, [](auto &) {});
    for (int64_t index : taken)
      begin(index);
    taken.clear();
    beat();
    for (int32_t peer = 0; peer < table.size; ++peer)
      if (peers[peer].connection.isOpen() &&
          !peers[peer].connection.write(*this))
        lose(peer);
    if (aborting && (allHeard() || Clock::now() >= heardLimit))
      finished.push_back(std::exchange(aborting, nullptr));
    if (!aborting && noticeLimit <= Clock::now())
      endProcess();
    if (!finished.empty())
      finish(finished.data(), finished.size());
    finished.clear();
    if (!isOver())
      sleep();
  }
}

/// Sleeps until there is something to do, and takes what has come.
void TcpTransport::sleep() {
  polled.assign(1, {bell.get(), POLLIN, 0});
  polledPeers.assign(1, table.rank);
  for (int32_t peer = 0; peer < table.size; ++peer) {
    const Connection &connection = peers[peer].connection;
    if (!connection.isOpen())
      continue;
    short events = connection.hasOutput() ? POLLIN | POLLOUT : POLLIN;
    polled.push_back({connection.descriptor(), events, 0});
    polledPeers.push_back(peer);
  }
  auto pause = liveness.untilBeat();
  auto end = aborting ? heardLimit : noticeLimit;
  if (end != Clock::time_point::max())
    pause = std::min<Clock::duration>(pause, end - Clock::now());
  auto limit = std::max(std::chrono::ceil<std::chrono::milliseconds>(pause),
                        std::chrono::milliseconds(0));
  poll(polled.data(), polled.size(), static_cast<int>(limit.count()));
  uint64_t rings;
  if (polled[0].revents) [[maybe_unused]]
    ssize_t size = read(bell.get(), &rings, sizeof rings);
  for (size_t i = 1; i < polled.size(); ++i)
    if (polled[i].revents & ~POLLOUT &&
        !peers[polledPeers[i]].connection.read(*this))
      lose(polledPeers[i]);
}

bool TcpTransport::isOver() const {
  return closing && std::all_of(peers.begin(), peers.end(), [](const Peer &p) {
           return !p.connection.isOpen() ||
                  (p.bye && !p.connection.hasOutput());
         });
}

/// Whether all know of this rank's end.
bool TcpTransport::allHeard() const {
  return std::all_of(peers.begin(), peers.end(), [](const Peer &peer) {
    return !peer.connection.isOpen() || peer.heard;
  });
}

/// Nothing works any more.
void TcpTransport::stop(const std::string &text, bool byPeer) {
  if (byPeer)
    failByPeer(text);
  else
    fail(text);
  noticeLimit = std::min(noticeLimit, Clock::now() + noticeTime);
}

/// A connection has ended.
void TcpTransport::lose(int32_t peer) {
  peers[peer].connection.close();
  if (!peers[peer].bye && !closing)
    stop("rank " + std::to_string(table.rank) + " has lost rank " +
             std::to_string(peer) +
             ": its process has ended, or its machine is out of reach",
         /*byPeer=*/false);
}

void TcpTransport::beat() {
  Beat mine;
  if (closing || !liveness.takeBeat(mine))
    return;
  Frame frame = {Frame::Beat, 0, 0, mine.peer, -1, 0};
  frame.at = static_cast<int64_t>(mine.age * 1e9);
  tellAll(frame);
}

void TcpTransport::tellAll(const Frame &frame, const void *data) {
  for (Peer &peer : peers)
    if (peer.connection.isOpen())
      peer.connection.send({frame, static_cast<const std::byte *>(data)});
}

//===--- Commands ---------------------------------------------------------===//

void TcpTransport::begin(int64_t index) {
  Command &command = commandAt(index);
  switch (command.kind) {
  case Command::Send:
    return beginSend(index, command);
  case Command::Receive:
    return beginReceive(index, command);
  case Command::AllGather:
    return beginGather(index, command);
  case Command::Abort:
    aborting = &command;
    heardLimit = Clock::now() + heardTime;
    tellAll(
        {Frame::Abort, 0,
         static_cast<int64_t>(strlen(static_cast<const char *>(command.from))),
         -1, -1, 0},
        command.from);
    return;
  case Command::Close:
    closing = true;
    tellAll({Frame::Bye, 0, 0, -1, -1, 0});
    return;
  }
}

void TcpTransport::beginSend(int64_t index, Command &command) {
  command.span.begin = seconds();
  command.open = 1;
  Peer &peer = peers[command.peer];
  if (command.peer == table.rank) {
    if (std::optional<Post> post = peer.mailbox.takePost(command.tag)) {
      if (fits(table.rank, *post, command.bytes) && command.bytes)
        memcpy(post->to, command.from, command.bytes);
      endPart(*post->command);
      endPart(command);
    } else {
      peer.mailbox.add(Arrival{command.tag, command.bytes, {}, -1, &command});
    }
    return;
  }
  bool isWhole = command.bytes <= mostWhole;
  peer.connection.send({{isWhole ? Frame::Whole : Frame::Offer, command.tag,
                         command.bytes, index, -1, 0},
                        static_cast<const std::byte *>(command.from),
                        &command});
}

void TcpTransport::beginReceive(int64_t index, Command &command) {
  command.open = 1;
  Post post = {&command, index, static_cast<std::byte *>(command.to),
               command.bytes, command.tag};
  Mailbox &mailbox = peers[command.peer].mailbox;
  std::optional<Arrival> arrival = mailbox.takeArrival(command.tag);
  if (!arrival)
    return mailbox.add(post);
  if (arrival->offered >= 0)
    return meetOffer(command.peer, post, arrival->bytes, arrival->offered);
  const void *from = arrival->own ? arrival->own->from : arrival->data.data();
  if (fits(command.peer, post, arrival->bytes) && post.bytes)
    memcpy(post.to, from, post.bytes);
  endPart(command);
  if (arrival->own)
    endPart(*arrival->own);
  else
    recycle(std::move(arrival->data));
}

/// A gather is short messages between all.
void TcpTransport::beginGather(int64_t index, Command &command) {
  command.open = 1 + 2 * (table.size - 1);
  auto *to = static_cast<std::byte *>(command.to);
  if (command.bytes)
    memcpy(to + table.rank * command.bytes, command.from, command.bytes);
  Frame frame = {Frame::Whole, gatherTag, command.bytes, index, -1, 0};
  for (int32_t peer = 0; peer < table.size; ++peer) {
    if (peer == table.rank)
      continue;
    peers[peer].connection.send(
        {frame, static_cast<const std::byte *>(command.from), &command});
    Post post = {&command, index, to + peer * command.bytes, command.bytes,
                 gatherTag};
    std::optional<Arrival> arrival = peers[peer].mailbox.takeArrival(gatherTag);
    if (!arrival) {
      peers[peer].mailbox.add(post);
      continue;
    }
    if (fits(peer, post, arrival->bytes) && post.bytes)
      memcpy(post.to, arrival->data.data(), post.bytes);
    recycle(std::move(arrival->data));
    endPart(command);
  }
  endPart(command);
}

/// Part of a command is done.
void TcpTransport::endPart(Command &command, int64_t amount) {
  command.open -= amount;
  if (command.open == 0)
    finished.push_back(&command);
}

/// Whether a message has the bytes that are expected; else all fails.
bool TcpTransport::fits(int32_t peer, const Post &post, int64_t bytes) {
  if (post.bytes == bytes)
    return true;
  bool gathers = post.tag == gatherTag;
  stop(gathers
           ? fmt::format("rank {} gathers {} bytes, rank {} has {}", table.rank,
                         post.bytes, peer, bytes)
           : fmt::format("rank {} expects {} bytes with tag {}, rank {} has {}",
                         table.rank, post.bytes, post.tag, peer, bytes),
       /*byPeer=*/false);
  return false;
}

/// The receiver of a long message is there.
void TcpTransport::meetOffer(int32_t peer, const Post &post, int64_t bytes,
                             int64_t sender) {
  if (!fits(peer, post, bytes))
    return;
  post.command->open = bytes;
  peers[peer].connection.send(
      {{Frame::Accept, post.tag, 0, sender, post.index, 0}});
}

//===--- Frames -----------------------------------------------------------===//

std::vector<std::byte> TcpTransport::takeBuffer(int64_t bytes) {
  std::vector<std::byte> buffer;
  if (!spare.empty()) {
    buffer = std::move(spare.back());
    spare.pop_back();
  }
  buffer.resize(bytes);
  return buffer;
}

std::byte *TcpTransport::arrives(int32_t peer, const Frame &frame) {
  Peer &from = peers[peer];
  if (frame.kind == Frame::Piece)
    return static_cast<std::byte *>(commandAt(frame.receiver).to) + frame.at;
  if (frame.kind == Frame::Whole) {
    from.post = from.mailbox.takePost(frame.tag);
    if (from.post && fits(peer, *from.post, frame.bytes))
      return from.post->to;
    from.post.reset();
  }
  if (frame.payload())
    from.data = takeBuffer(frame.payload());
  return from.data.data();
}

void TcpTransport::arrivedWhole(int32_t peer, const Frame &frame) {
  Peer &from = peers[peer];
  if (!from.post) {
    // It may have been posted since.
    std::optional<Post> post = from.mailbox.takePost(frame.tag);
    if (!post)
      return from.mailbox.add(
          Arrival{frame.tag, frame.bytes, std::move(from.data)});
    if (fits(peer, *post, frame.bytes) && frame.bytes)
      memcpy(post->to, from.data.data(), frame.bytes);
    recycle(std::move(from.data));
    from.post = post;
  }
  endPart(*from.post->command);
  from.post.reset();
}

void TcpTransport::arrived(int32_t peer, const Frame &frame) {
  Peer &from = peers[peer];
  switch (frame.kind) {
  case Frame::Whole:
    return arrivedWhole(peer, frame);
  case Frame::Offer:
    if (std::optional<Post> post = from.mailbox.takePost(frame.tag))
      meetOffer(peer, *post, frame.bytes, frame.sender);
    else
      from.mailbox.add(Arrival{frame.tag, frame.bytes, {}, frame.sender});
    return;
  case Frame::Accept: {
    Command &command = commandAt(frame.sender);
    Frame piece = {
        Frame::Piece, command.tag,    std::min(pieceBytes, command.bytes),
        frame.sender, frame.receiver, 0};
    return from.connection.send(
        {piece, static_cast<const std::byte *>(command.from), &command});
  }
  case Frame::Piece:
    return endPart(commandAt(frame.receiver), frame.bytes);
  case Frame::Beat:
    return liveness.hear(peer,
                         {static_cast<double>(frame.at) * 1e-9, frame.sender});
  case Frame::Abort:
    stop(std::string(reinterpret_cast<const char *>(from.data.data()),
                     from.data.size()),
         /*byPeer=*/true);
    return from.connection.send({{Frame::Heard, 0, 0, -1, -1, 0}});
  case Frame::Heard:
    from.heard = true;
    return;
  case Frame::Bye:
    from.bye = true;
    return;
  }
}

void TcpTransport::left(int32_t peer, const Outgoing &outgoing) {
  const Frame &frame = outgoing.frame;
  if (frame.kind == Frame::Whole)
    return endPart(*outgoing.command);
  if (frame.kind != Frame::Piece)
    return;
  Outgoing next = outgoing;
  next.frame.at += frame.bytes;
  next.data += frame.bytes;
  next.frame.bytes =
      std::min(pieceBytes, outgoing.command->bytes - next.frame.at);
  if (next.frame.bytes)
    peers[peer].connection.send(next);
  else
    endPart(*outgoing.command);
}

extern "C" __attribute__((visibility("default"))) mgq_transport *
mgq_open_transport(int32_t abiVersion, double timeoutSeconds, char *error,
                   int64_t errorBytes) {
  return openTransport(new TcpTransport(timeoutSeconds), abiVersion, error,
                       errorBytes);
}
