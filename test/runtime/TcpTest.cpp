//===- TcpTest.cpp - Ranks as processes of torchrun and Slurm -------------===//

#include "runtime/src/local/LaunchEnvironment.h"
#include "runtime/src/tcp/Sockets.h"
#include "test/runtime/TestFiles.h"
#include <chrono>
#include <csignal>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

using namespace test;
using testing::AnyOf;
using testing::Each;
using testing::HasSubstr;

using Words = std::vector<std::string>;

namespace {
/// A socket that listens, maybe, at a port that was free.
struct Port {
  int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int number;

  explicit Port(bool listens = false) {
    sockaddr_in address = {};
    socklen_t size = sizeof address;
    address.sin_family = AF_INET;
    bind(descriptor, reinterpret_cast<sockaddr *>(&address), size);
    getsockname(descriptor, reinterpret_cast<sockaddr *>(&address), &size);
    number = ntohs(address.sin_port);
    if (listens)
      listen(descriptor, 8);
    else
      leave();
  }
  ~Port() { leave(); }
  void leave() {
    if (descriptor >= 0)
      close(descriptor);
    descriptor = -1;
  }
};

/// What a launcher says of the place where ranks meet.
Words masterAt(int port, const std::string &host = "localhost") {
  return {"MASTER_ADDR=" + host, "MASTER_PORT=" + std::to_string(port)};
}
Words torchrun(size_t rank, size_t size) {
  return {"RANK=" + std::to_string(rank), "WORLD_SIZE=" + std::to_string(size),
          "LOCAL_RANK=" + std::to_string(rank)};
}
Words slurm(size_t rank, size_t size) {
  return {"SLURM_PROCID=" + std::to_string(rank),
          "SLURM_NTASKS=" + std::to_string(size),
          "SLURM_LOCALID=" + std::to_string(rank)};
}

Words operator+(Words all, const Words &more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

/// Processes, each in a folder of its own.
class Ranks {
public:
  Ranks() = default;
  /// One for each, as a launcher would start them.
  Ranks(const std::vector<Words> &words, const Words &environment,
        Words (*launcher)(size_t, size_t) = torchrun) {
    Words all = environment + masterAt(Port().number);
    for (size_t rank = 0; rank < words.size(); ++rank)
      add(words[rank], all + launcher(rank, words.size()));
  }

  void add(const Words &words, const Words &environment) {
    folders.push_back(std::make_unique<TempDir>());
    processes.push_back(std::make_unique<Process>(
        folders.back()->path, words,
        environment + Words{"MGQ_PLUGIN_DIR=" MGQ_PLUGIN_FOLDER}));
  }
  const Process &operator[](size_t rank) const { return *processes[rank]; }
  std::vector<RunResult> wait() {
    std::vector<RunResult> results;
    for (const std::unique_ptr<Process> &process : processes) {
      int status = process->wait();
      results.push_back({status, process->output(), process->error()});
    }
    return results;
  }

private:
  std::vector<std::unique_ptr<TempDir>> folders;
  std::vector<std::unique_ptr<Process>> processes;
};

struct Tcp : testing::Test {
  TempDir dir;

  void SetUp() override {
    writePipeWeights(dir / "pipe.weights");
    writeFile(dir / "d.safetensors", tensorFile(pipeData(19, 5)));
  }

  /// A rank's words: the toy and its options.
  Words toy(const Words &more) const {
    Words all = {"--data", dir / "d.safetensors", "--weights=" + dir.path,
                 "--threads=1"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  std::vector<RunResult> run(size_t ranks, const Words &plan,
                             const Words &more) const {
    return Ranks(std::vector<Words>(ranks, toy(more)), plan).wait();
  }
  static std::vector<Words> check(size_t ranks, Words more = {}) {
    more.insert(more.begin(), "!" MGQ_PROCESS_CHECK_PATH);
    return std::vector<Words>(ranks, more);
  }

  /// All end, in time, with a status other than 0; their errors.
  static Words faults(Ranks ranks) {
    auto start = std::chrono::steady_clock::now();
    Words errors;
    for (const RunResult &result : ranks.wait()) {
      EXPECT_NE(result.status, 0) << result.output;
      errors.push_back(result.error);
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start,
              std::chrono::seconds(10));
    return errors;
  }
  Words faults(size_t ranks, const Words &plan, Words more) const {
    more.push_back("--steps=200");
    return faults(Ranks(std::vector<Words>(ranks, toy(more)), plan));
  }
};

/// Variables of this process, until it goes.
class Variables {
public:
  explicit Variables(const std::map<std::string, std::string> &values) {
    for (const auto &[name, value] : values) {
      setenv(name.c_str(), value.c_str(), 1);
      names.push_back(name);
    }
  }
  ~Variables() {
    for (const std::string &name : names)
      unsetenv(name.c_str());
  }

private:
  Words names;
};
} // namespace

TEST_F(Tcp, MessagesArrive) {
  std::vector<RunResult> results = Ranks(check(2), {}).wait();
  for (const RunResult &result : results)
    EXPECT_EQ(result.status, 0) << result.error;
  EXPECT_EQ(results[0].output, "ok\n");
}

TEST_F(Tcp, MessagesThatDifferEndAll) {
  EXPECT_THAT(faults(Ranks(check(2, {"short"}), {})),
              Each("error: rank 1 expects 100000 bytes with tag 12, rank 0 has "
                   "200000\n"));
  EXPECT_THAT(faults(Ranks(check(2, {"wide"}), {})),
              Each(AnyOf("error: rank 0 gathers 200 bytes, rank 1 has 100\n",
                         "error: rank 1 gathers 100 bytes, rank 0 has 200\n")));
}

// Ranks that wait together for a stopped one hear each other's beats.
TEST_F(Tcp, StoppedRankIsMissed) {
  auto errors = [&](const std::string &how) {
    auto start = std::chrono::steady_clock::now();
    Ranks ranks(check(4, {how}), {});
    std::string all;
    for (size_t rank = 0; rank < 3; ++rank) {
      while (ranks[rank].error().empty() &&
             std::chrono::steady_clock::now() - start <
                 std::chrono::seconds(10))
        usleep(10000);
      all += ranks[rank].error();
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start,
              std::chrono::seconds(10));
    return all;
  };
  EXPECT_THAT(errors("stop"),
              HasSubstr("waits for the others: no sign of life for 1 s"));
  EXPECT_THAT(errors("watch"),
              HasSubstr("waits for rank 3: no sign of life for 1 s"));
  std::string text = errors("chain");
  EXPECT_THAT(text, HasSubstr("rank 2 waits for rank 3: no sign of life"));
  EXPECT_THAT(text, testing::Not(HasSubstr("waits for rank 1")));
  EXPECT_THAT(text, testing::Not(HasSubstr("waits for rank 2")));
}

TEST_F(Tcp, ProcessesChangeNoBit) {
  for (Words plan : {Words{"TOY_STAGES=2"},
                     {"TOY_STAGES=2", "TOY_REPLICAS=2", "TOY_MICRO_BATCHES=2",
                      "TOY_SPLIT=1"}}) {
    SCOPED_TRACE(testing::PrintToString(plan));
    auto options = [&](const std::string &name) {
      return toy({"--steps=9", "--output-dir=" + dir / name,
                  "--log-file=" + dir / (name + ".log"), "--eval-data",
                  dir / "d.safetensors", "--trace=" + dir / (name + ".trace"),
                  "--summary=" + dir / "s"});
    };
    RunResult threads = runToy(dir, options("threads"), plan);
    ASSERT_EQ(threads.status, 0) << threads.error;
    size_t ranks = plan.size() > 1 ? 4 : 2;
    for (auto launcher : {torchrun, slurm}) {
      for (const RunResult &result :
           Ranks(std::vector<Words>(ranks, options("tcp")), plan, launcher)
               .wait())
        ASSERT_EQ(result.status, 0) << result.error;
      EXPECT_EQ(readLog(dir / "tcp.log"), readLog(dir / "threads.log"));
      for (const char *name : {"model", "optimizer"}) {
        std::string file =
            std::string("/checkpoint-9/") + name + ".safetensors";
        EXPECT_EQ(readFile(dir / "tcp" + file),
                  readFile(dir / "threads" + file));
      }
      nlohmann::json summary = nlohmann::json::parse(readFile(dir / "s"));
      EXPECT_EQ(summary["ranks"].size(), ranks);
    }
  }
}

TEST_F(Tcp, FaultsEndAllProcesses) {
  EXPECT_THAT(faults(2, {"TOY_STAGES=2", "TOY_INDEX=1"}, {}),
              Each(HasSubstr("error: rank 1: index 9 is outside [0, 8)")));
  Words killed = faults(3, {"TOY_STAGES=3", "TOY_DIE=1"}, {});
  for (size_t rank : {0, 2})
    EXPECT_THAT(killed[rank],
                AnyOf(HasSubstr("error: rank 2 has lost rank 1: its process "
                                "has ended, or its machine is out of reach"),
                      HasSubstr("error: rank 0 has lost rank 1")));
  EXPECT_THAT(faults(2, {"TOY_STAGES=2", "TOY_DIE=0"}, {}).back(),
              HasSubstr("rank 1 has lost rank 0"));
  EXPECT_THAT(faults(2, {"TOY_STAGES=2", "TOY_STALL=1"}, {"--timeout=1"}),
              Each(HasSubstr("error: rank 0 waits for rank 1: no sign of life "
                             "for 1 s")));
  EXPECT_THAT(faults(2, {"TOY_STAGES=2", "TOY_HUGE=1"}, {}),
              Each(HasSubstr("error: rank 1: the plan needs 1024.00 TiB")));
  EXPECT_THAT(faults(2, {"TOY_STAGES=2"}, {"--log-file=/dev/full"}),
              Each(HasSubstr("error: rank 0: cannot write '/dev/full'")));
  EXPECT_THAT(faults(2, {"TOY_STAGES=3"}, {}),
              Each("error: the program was compiled for 3 ranks, it was "
                   "launched with 2\n"));
}

TEST_F(Tcp, RanksCompareOptions) {
  Ranks ranks({toy({"--steps=3"}), toy({"--steps=4"})}, {"TOY_STAGES=2"});
  for (const RunResult &result : ranks.wait()) {
    EXPECT_EQ(result.status, 1);
    EXPECT_EQ(result.error, "error: rank 1 has another --steps than rank 0; "
                            "start all ranks with the same options\n");
  }
}

// Waits are longer than the timeout, but who is waited for computes.
TEST_F(Tcp, SlowRanksAreAlive) {
  for (const RunResult &result :
       run(3, {"TOY_STAGES=3", "TOY_EAGER=1", "TOY_SLEEP=100000"},
           {"--steps=2", "--timeout=0.35"}))
    EXPECT_EQ(result.status, 0) << result.error;
}

// A signal that one rank sees stops all after the same step.
TEST_F(Tcp, InterruptStopsAll) {
  Ranks ranks(std::vector<Words>(
                  2, toy({"--steps=100000", "--output-dir=" + dir / "out",
                          "--log-file=" + dir / "out.log"})),
              {"TOY_STAGES=2", "TOY_SLEEP=1000"});
  for (int i = 0; i < 1000 && readLog(dir / "out.log").size() < 3; ++i)
    usleep(10000);
  ranks[1].kill(SIGINT);
  for (const RunResult &result : ranks.wait())
    EXPECT_EQ(result.status, 130) << result.error;
  EXPECT_TRUE(fileExists(dir / "out/checkpoint-" +
                         std::to_string(readLog(dir / "out.log").size())));
}

//===----------------------------------------------------------------------===//
// Meeting
//===----------------------------------------------------------------------===//

// Whom others ask has another port, or what they ask is another program.
TEST_F(Tcp, BusyPortsAreNamed) {
  Port busy(true);
  Words plan = Words{"TOY_STAGES=2"} + masterAt(busy.number);
  std::string port = std::to_string(busy.number);
  Ranks first;
  first.add(toy({"--steps=3"}), plan + torchrun(0, 2));
  EXPECT_THAT(faults(std::move(first)),
              Each("error: cannot connect to the other ranks: rank 0 cannot "
                   "listen at port " +
                   port +
                   ": Address already in use; MASTER_PORT chooses another\n"));
  // torchrun's own store has the port that it names.
  Ranks next;
  next.add(toy({"--steps=3", "--timeout=0.2"}),
           Words{"TOY_STAGES=2", "TORCHELASTIC_USE_AGENT_STORE=True"} +
               masterAt(busy.number - 1) + torchrun(0, 2));
  EXPECT_THAT(faults(std::move(next)),
              Each(HasSubstr("rank 0 cannot listen at port " + port)));
  Ranks other;
  other.add(toy({"--steps=3"}), plan + torchrun(1, 2));
  int there = accept(busy.descriptor, nullptr, nullptr);
  std::string answer(1000, 'x');
  send(there, answer.data(), answer.size(), 0);
  EXPECT_THAT(faults(std::move(other)),
              Each("error: cannot connect to the other ranks: what answers at "
                   "localhost:" +
                   port +
                   " is not rank 0; MASTER_ADDR and MASTER_PORT say where it "
                   "is\n"));
  close(there);
}

TEST_F(Tcp, AbsentRanksAreNamed) {
  int port = Port().number;
  auto one = [&](size_t rank, const Words &master) {
    Ranks ranks;
    ranks.add(toy({"--steps=3", "--timeout=0.5"}),
              Words{"TOY_STAGES=3"} + master + torchrun(rank, 3));
    return faults(std::move(ranks))[0];
  };
  EXPECT_THAT(one(0, masterAt(port)),
              HasSubstr("rank 0 has waited 0.5 s for ranks 1, 2\n"));
  EXPECT_THAT(one(1, masterAt(port)),
              HasSubstr("rank 1 cannot reach rank 0 at localhost:" +
                        std::to_string(port) +
                        ": Connection refused for 0.5 s; MASTER_ADDR and "
                        "MASTER_PORT say where it is"));
  EXPECT_THAT(one(1, masterAt(port, "no-such-host.invalid")),
              HasSubstr("rank 1 cannot reach rank 0 at no-such-host.invalid:"));
}

// All who have come hear of one who does not fit.
TEST_F(Tcp, RanksThatDoNotFitAreRefused) {
  Words plan = Words{"TOY_STAGES=3"} + masterAt(Port().number);
  Words words = toy({"--steps=3"});
  Ranks twice;
  twice.add(words, plan + torchrun(0, 3));
  twice.add(words, plan + torchrun(2, 3));
  twice.add(words, plan + torchrun(2, 3));
  EXPECT_THAT(faults(std::move(twice)),
              Each(HasSubstr("two processes say that they are rank 2")));
  // A check has no size of its own.
  Words check = {"!" MGQ_PROCESS_CHECK_PATH};
  Ranks sizes;
  plan = masterAt(Port().number);
  sizes.add(check, plan + torchrun(0, 2));
  sizes.add(check, plan + torchrun(1, 3));
  EXPECT_THAT(faults(std::move(sizes)),
              Each(HasSubstr("rank 1 is one of 3 processes, rank 0 one of 2")));
}

// The system asks after a machine that is silent, and gives it up in time.
TEST(Sockets, ExpectSigns) {
  namespace tcp = mgq::tcp;
  auto optionsOf = [](double seconds) {
    tcp::Socket listener = tcp::listenAt(0);
    auto deadline = tcp::Clock::now() + std::chrono::seconds(10);
    std::string fault;
    bool isFinal = false;
    tcp::Socket socket = tcp::connectOnce("localhost", tcp::portOf(listener),
                                          deadline, fault, isFinal);
    EXPECT_TRUE(socket) << fault;
    tcp::expectSigns(socket, seconds);
    std::vector<int> values;
    for (auto [level, option] : {std::pair(SOL_SOCKET, SO_KEEPALIVE),
                                 {IPPROTO_TCP, TCP_KEEPIDLE},
                                 {IPPROTO_TCP, TCP_KEEPINTVL},
                                 {IPPROTO_TCP, TCP_KEEPCNT},
                                 {IPPROTO_TCP, TCP_USER_TIMEOUT}}) {
      int value = -1;
      socklen_t size = sizeof value;
      getsockopt(socket.get(), level, option, &value, &size);
      values.push_back(value);
    }
    return values;
  };
  EXPECT_EQ(optionsOf(300), (std::vector<int>{1, 75, 75, 3, 300000}));
  EXPECT_EQ(optionsOf(0.5), (std::vector<int>{1, 1, 1, 3, 500}));
  EXPECT_EQ(optionsOf(1e300),
            (std::vector<int>{1, 32767, 32767, 3, 1000000000}));
  std::vector<int> never = optionsOf(0);
  EXPECT_EQ(never[0], 0);
  EXPECT_EQ(never[4], 0);
}

TEST(LaunchEnvironment, KnowsItsLaunchers) {
  using mgq::rt::launchEnvironment;
  EXPECT_EQ(launchEnvironment().size, 0);
  EXPECT_EQ(launchEnvironment().transport, nullptr);
  {
    Variables set({{"OMPI_COMM_WORLD_SIZE", "4"},
                   {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                   {"RANK", "7"},
                   {"WORLD_SIZE", "8"}});
    mgq::rt::LaunchEnvironment found = launchEnvironment();
    EXPECT_STREQ(found.transport, "mpi");
    EXPECT_EQ(found.size, 4);
    EXPECT_EQ(found.localRank, 1);
  }
  Variables place({{"MASTER_PORT", "1234"}});
  {
    Variables set({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}});
    EXPECT_EQ(launchEnvironment().size, 0) << "a job's script";
    Variables step({{"SLURM_STEP_ID", "0"}});
    EXPECT_EQ(errorOf(launchEnvironment),
              "the variable MASTER_ADDR is not set; srun has started 4 "
              "processes, and it says where rank 0 is");
  }
  Variables host({{"MASTER_ADDR", "there"}});
  {
    Variables set(
        {{"SLURM_PROCID", "3"}, {"SLURM_NTASKS", "4"}, {"SLURM_LOCALID", "1"}});
    mgq::rt::LaunchEnvironment found = launchEnvironment();
    EXPECT_STREQ(found.transport, "tcp");
    EXPECT_EQ(found.rank, 3);
    EXPECT_EQ(found.localRank, 1);
  }
  Variables set({{"RANK", "2"}, {"WORLD_SIZE", "3"}, {"LOCAL_RANK", "0"}});
  mgq::rt::LaunchEnvironment found = launchEnvironment();
  EXPECT_STREQ(found.transport, "tcp");
  EXPECT_EQ(found.rank, 2);
  EXPECT_EQ(found.size, 3);
  EXPECT_EQ(found.host, "there");
  EXPECT_EQ(found.port, 1234);
  EXPECT_EQ(found.localRank, 0);
  Variables store({{"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  EXPECT_EQ(launchEnvironment().port, 1235);
}

TEST(LaunchEnvironment, RefusesNonsense) {
  auto fault = [](const char *name, const char *value) {
    Variables good({{"RANK", "0"},
                    {"WORLD_SIZE", "2"},
                    {"MASTER_ADDR", "there"},
                    {"MASTER_PORT", "1234"}});
    Variables bad({{name, value}});
    return errorOf(mgq::rt::launchEnvironment);
  };
  EXPECT_EQ(fault("WORLD_SIZE", "two"),
            "the variable WORLD_SIZE is 'two', expected a number from 1 to "
            "2147483647");
  EXPECT_EQ(fault("RANK", "2"),
            "the variable RANK is '2', expected a number from 0 to 1");
  EXPECT_EQ(fault("LOCAL_RANK", "-1"),
            "the variable LOCAL_RANK is '-1', expected a number from 0 to 1");
  EXPECT_EQ(fault("MASTER_PORT", "0"),
            "the variable MASTER_PORT is '0', expected a number from 1 to "
            "65535");
  EXPECT_EQ(fault("MASTER_PORT", ""),
            "the variable MASTER_PORT is not set; a launcher has started 2 "
            "processes, and it says where rank 0 is");
  EXPECT_EQ(fault("OMPI_COMM_WORLD_SIZE", "x"),
            "the variable OMPI_COMM_WORLD_SIZE is 'x', expected a number from "
            "1 to 2147483647");
}
