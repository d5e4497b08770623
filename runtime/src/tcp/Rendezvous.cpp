//===- Rendezvous.cpp - How processes find each other ---------------------===//

#include "runtime/src/tcp/Rendezvous.h"
#include "runtime/include/rt.h"
#include "runtime/src/common/Error.h"
#include "runtime/src/tcp/Sockets.h"
#include <algorithm>
#include <thread>

using namespace mgq::tcp;
using mgq::rt::fail;

static constexpr uint64_t helloMark = 0x31687063742d716d;
static constexpr uint64_t answerMark = 0x31617063742d716d;
// How long one who has connected may take to say who it is.
static constexpr std::chrono::seconds helloTime{5};
static constexpr std::chrono::milliseconds firstPause{20}, longestPause{500};

namespace {
/// What the connecting side says first.
struct Hello {
  uint64_t mark;
  int32_t version, rank, size;
  int32_t port; ///< Where it listens.
};

/// What rank 0 answers: where all ranks listen, or a fault.
struct Answer {
  uint64_t mark;
  char fault[256]; ///< Empty: none.
};
struct Place {
  char host[64]; ///< Empty: on the machine of rank 0.
  int32_t port;
};

/// The meeting of one rank with the others.
class Meeting {
public:
  Meeting(const mgq::rt::LaunchEnvironment &place, double timeoutSeconds)
      : place(place), timeout(timeoutSeconds), sockets(place.size),
        deadline(Clock::now() +
                 std::chrono::duration_cast<Clock::duration>(
                     std::chrono::duration<double>(
                         timeout > 0 ? std::min(timeout, 1e8) : 1e8))) {}

  void meetAsFirst();
  void meetAsOther();
  std::vector<int> take();

private:
  void acceptOthers(const Socket &listener, int32_t from,
                    std::vector<Place> *places);
  std::string faultOf(const Hello &hello, int32_t from) const;
  [[noreturn]] void refuse(const std::string &fault);
  Socket connectTo(int32_t rank, const std::string &host, int port,
                   int ownPort);
  std::vector<Place> readPlaces();

  const mgq::rt::LaunchEnvironment &place;
  double timeout;
  std::vector<Socket> sockets; ///< By rank.
  Clock::time_point deadline;
};
} // namespace

/// What is wrong with one who says it is a rank from `from` on.
std::string Meeting::faultOf(const Hello &hello, int32_t from) const {
  if (hello.version != MGQ_ABI_VERSION)
    return fmt::format("rank {} runs another version of mgq than rank {}",
                       hello.rank, place.rank);
  if (hello.size != place.size)
    return fmt::format("rank {} is one of {} processes, rank {} one of {}",
                       hello.rank, hello.size, place.rank, place.size);
  if (hello.rank < from || hello.rank >= place.size)
    return fmt::format("a process says that it is rank {} of {}", hello.rank,
                       place.size);
  if (sockets[hello.rank])
    return fmt::format("two processes say that they are rank {}", hello.rank);
  return "";
}

/// Fails. Rank 0, whom all ask, tells those who have come.
void Meeting::refuse(const std::string &fault) {
  Answer answer = {answerMark, {}};
  fault.copy(answer.fault, sizeof answer.fault - 1);
  for (const Socket &socket : sockets)
    if (socket && place.rank == 0)
      writeAll(socket, &answer, sizeof answer, Clock::now() + helloTime);
  fail("{}", fault);
}

/// Waits for the ranks from `from` on; fills in where they listen.
void Meeting::acceptOthers(const Socket &listener, int32_t from,
                           std::vector<Place> *places) {
  for (int32_t missing = place.size - from; missing > 0;) {
    Socket socket = acceptBy(listener, deadline);
    if (!socket) {
      std::vector<int32_t> absent;
      for (int32_t rank = from; rank < place.size; ++rank)
        if (!sockets[rank])
          absent.push_back(rank);
      refuse(fmt::format("rank {} has waited {:g} s for rank{} {}", place.rank,
                         timeout, absent.size() == 1 ? "" : "s",
                         fmt::join(absent, ", ")));
    }
    Hello hello = {};
    if (!readAll(socket, &hello, sizeof hello,
                 std::min(deadline, Clock::now() + helloTime)) ||
        hello.mark != helloMark)
      continue; // It is none of us.
    if (std::string fault = faultOf(hello, from); !fault.empty()) {
      sockets.push_back(std::move(socket)); // Is told, too.
      refuse(fault);
    }
    if (places) {
      Place &there = places->at(hello.rank);
      peerAddress(socket).copy(there.host, sizeof there.host - 1);
      there.port = hello.port;
    }
    sockets[hello.rank] = std::move(socket);
    --missing;
  }
}

void Meeting::meetAsFirst() {
  Socket listener;
  try {
    listener = listenAt(place.port);
  } catch (const mgq::rt::Error &error) {
    fail("rank 0 cannot listen at port {}: {}; MASTER_PORT chooses another",
         place.port, error.what());
  }
  std::vector<Place> places(place.size);
  acceptOthers(listener, 1, &places);
  Answer answer = {answerMark, {}};
  for (int32_t rank = 1; rank < place.size; ++rank)
    if (!writeAll(sockets[rank], &answer, sizeof answer, deadline) ||
        !writeAll(sockets[rank], places.data(), places.size() * sizeof(Place),
                  deadline))
      fail("rank {} has ended before all had met", rank);
}

/// A socket to a rank that may not be there yet, which knows who this is.
Socket Meeting::connectTo(int32_t rank, const std::string &host, int port,
                          int ownPort) {
  auto pause = firstPause;
  std::string fault;
  for (bool isFinal = false; !isFinal;) {
    Socket socket = connectOnce(host, port, deadline, fault, isFinal);
    if (socket) {
      Hello hello = {helloMark, MGQ_ABI_VERSION, place.rank, place.size,
                     ownPort};
      if (writeAll(socket, &hello, sizeof hello, deadline))
        return socket;
      fault = "it has closed the connection";
    }
    if (Clock::now() + pause >= deadline)
      fault += fmt::format(" for {:g} s", timeout);
    if (isFinal || Clock::now() + pause >= deadline)
      break;
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, longestPause);
  }
  fail("rank {} cannot reach rank {} at {}:{}: {}{}", place.rank, rank, host,
       port, fault,
       rank == 0 ? "; MASTER_ADDR and MASTER_PORT say where it is" : "");
}

/// Where all listen, from rank 0.
std::vector<Place> Meeting::readPlaces() {
  Answer answer = {};
  if (!readAll(sockets[0], &answer, sizeof answer, deadline))
    fail("rank {} has no answer from rank 0 at {}:{}, which has ended or is "
         "another program",
         place.rank, place.host, place.port);
  answer.fault[sizeof answer.fault - 1] = 0;
  if (answer.mark != answerMark)
    fail("what answers at {}:{} is not rank 0; MASTER_ADDR and MASTER_PORT say "
         "where it is",
         place.host, place.port);
  if (answer.fault[0])
    fail("{}", answer.fault);
  std::vector<Place> places(place.size);
  if (!readAll(sockets[0], places.data(), places.size() * sizeof(Place),
               deadline))
    fail("rank 0 has ended before all had met");
  for (Place &there : places)
    there.host[sizeof there.host - 1] = 0;
  return places;
}

void Meeting::meetAsOther() {
  Socket listener = listenAt(0);
  int ownPort = portOf(listener);
  sockets[0] = connectTo(0, place.host, place.port, ownPort);
  std::vector<Place> places = readPlaces();
  for (int32_t rank = 1; rank < place.rank; ++rank) {
    const Place &there = places[rank];
    sockets[rank] = connectTo(rank, there.host[0] ? there.host : place.host,
                              there.port, ownPort);
  }
  acceptOthers(listener, place.rank + 1, nullptr);
}

std::vector<int> Meeting::take() {
  std::vector<int> taken;
  for (Socket &socket : sockets) {
    expectSigns(socket, timeout);
    taken.push_back(socket.release());
  }
  return taken;
}

std::vector<int> mgq::tcp::meet(const mgq::rt::LaunchEnvironment &place,
                                double timeoutSeconds) {
  Meeting meeting(place, timeoutSeconds);
  if (place.rank == 0)
    meeting.meetAsFirst();
  else
    meeting.meetAsOther();
  return meeting.take();
}
