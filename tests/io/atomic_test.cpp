#include "luna/io/atomic.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/wait.h>

#include <atomic>
#include <csignal>
#include <fstream>
#include <set>
#include <thread>

#include "luna/io/faults.h"
#include "luna/io/file_lock.h"
#include "luna/io/memory_map.h"
#include "luna/io/text_file.h"
#include "support/errors.h"
#include "support/temporary_folder.h"

namespace luna::io {
namespace {

namespace fs = std::filesystem;
using luna::testing::expect_error;

class Atomic : public luna::testing::FolderTest {
 protected:
  void TearDown() override {
    set_fault({});
    FolderTest::TearDown();
  }

  std::set<std::string> names() const {
    std::set<std::string> all;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      all.insert(entry.path().filename().string());
    }
    return all;
  }

  /// Saves the two files of a checkpoint as version `text`.
  void save(const std::string& text) const {
    AtomicFolder folder(path("best"));
    write_text(folder.file("model"), text + std::string(100'000, '.'));
    write_text(folder.file("state"), text);
    folder.commit();
  }
  /// The version in place; both files must be whole and agree.
  std::string saved() const {
    const std::string state = read_text(path("best/state"));
    EXPECT_EQ(read_text(path("best/model")), state + std::string(100'000, '.'));
    return state;
  }
  /// Runs `work` in a child with a fault; true if it was killed.
  template <class Work>
  bool killed(const Fault& fault, const Work& work) const {
    const pid_t child = fork();
    if (child == 0) {
      set_fault(fault);
      try {
        work();
      } catch (const std::exception&) {
        _exit(1);
      }
      _exit(0);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status)) {
      EXPECT_EQ(WTERMSIG(status), SIGKILL);
      return true;
    }
    EXPECT_EQ(WEXITSTATUS(status), 0);
    return false;
  }
};

TEST_F(Atomic, FileIsOldOrNewWhereverItIsKilled) {
  for (int64_t call = 1;; ++call) {
    write_text(path("x"), "old");
    const bool dead =
        killed({.action = Fault::Action::kKill, .call = call}, [&] {
          write_file_atomically(path("x"), [](FileWriter& file) {
            file.write("new");
            file.write(std::string(200'000, 'x'));
          });
        });
    const std::string now = read_text(path("x"));
    EXPECT_TRUE(now == "old" || now == "new" + std::string(200'000, 'x'))
        << call;
    remove_leftovers(folder_.string());
    EXPECT_EQ(names(), std::set<std::string>{"x"}) << call;
    if (!dead) {
      EXPECT_GE(call, 6);  // open, two writes, sync, rename, sync
      EXPECT_NE(now, "old");
      break;
    }
  }
}

TEST_F(Atomic, FolderIsOldOrNewWhereverItIsKilled) {
  save("first");
  std::set<std::string> seen;
  for (int64_t call = 1;; ++call) {
    const bool dead = killed({.action = Fault::Action::kKill, .call = call},
                             [&] { save("second"); });
    remove_leftovers(folder_.string());
    EXPECT_EQ(names(), std::set<std::string>{"best"}) << call;
    seen.insert(saved());
    if (!dead) break;
    save("first");
  }
  EXPECT_EQ(seen, (std::set<std::string>{"first", "second"}));
}

TEST_F(Atomic, FirstFolderIsThereOrNotWhereverItIsKilled) {
  for (int64_t call = 1;; ++call) {
    const bool dead = killed({.action = Fault::Action::kKill, .call = call},
                             [&] { save("first"); });
    remove_leftovers(folder_.string());
    if (fs::exists(path("best"))) {
      EXPECT_EQ(saved(), "first");
    }
    if (!dead) break;
    fs::remove_all(path("best"));
    EXPECT_TRUE(names().empty());
  }
  EXPECT_EQ(saved(), "first");
}

TEST_F(Atomic, EveryFailureIsReportedAndLeavesAWholeFolder) {
  save("first");
  for (int64_t call = 1;; ++call) {
    set_fault({.action = Fault::Action::kFail, .call = call, .repeats = true});
    std::string message;
    try {
      save("second");
    } catch (const c10::Error& error) {
      message = error.what_without_backtrace();
    }
    const bool reached = fault_calls() >= call;
    set_fault({});
    remove_leftovers(folder_.string());
    EXPECT_EQ(names(), std::set<std::string>{"best"}) << call;
    const std::string now = saved();
    if (!reached) {
      EXPECT_EQ(message, "");
      EXPECT_EQ(now, "second");
      EXPECT_GT(call, 10);
      break;
    }
    if (now == "first") {
      EXPECT_NE(message.find("No space left"), std::string::npos) << message;
      EXPECT_NE(message.find(folder_.string()), std::string::npos) << message;
    }
    save("first");
  }
}

TEST_F(Atomic, AReadOnlyFolderIsReported) {
  save("first");
  set_fault({.action = Fault::Action::kFail, .point = "mkdir", .error = EROFS});
  expect_error<c10::Error>([&] { save("second"); },
                           {path("best"), "Read-only file system"});
  set_fault({.action = Fault::Action::kFail, .point = "open", .error = EACCES});
  expect_error<c10::Error>([&] { write_text(path("x"), "text"); },
                           {path("x"), "Permission denied"});
  EXPECT_EQ(names(), std::set<std::string>{"best"});
  EXPECT_EQ(saved(), "first");
}

// A file system without exchange (EINVAL) is simulated; the child is killed at
// each rename that then replaces it.
TEST_F(Atomic, WithoutExchangeTheFolderMovedAsideIsRecovered) {
  save("first");
  const Fault no_exchange = {
      .action = Fault::Action::kFail, .point = "exchange", .error = EINVAL};
  set_fault(no_exchange);
  save("second");
  set_fault({});
  EXPECT_EQ(saved(), "second");
  EXPECT_EQ(names(), std::set<std::string>{"best"});

  // as a process killed between the two renames leaves it
  fs::rename(path("best"), path(".best.luna-old-1-0"));
  EXPECT_TRUE(recover(path("best")));
  EXPECT_FALSE(recover(path("best")));
  EXPECT_EQ(saved(), "second");
  fs::rename(path("best"), path(".best.luna-old-1-0"));
  fs::create_directory(path(".best.luna-part-1-1"));
  EXPECT_EQ(remove_leftovers(folder_.string()),
            std::vector<std::string>{".best.luna-part-1-1"});
  EXPECT_EQ(saved(), "second");
  // with both there, the one moved aside is the older
  fs::create_directory(path(".best.luna-old-1-0"));
  EXPECT_FALSE(recover(path("best")));
  remove_leftovers(folder_.string());
  EXPECT_EQ(names(), std::set<std::string>{"best"});
}

TEST_F(Atomic, AThrowingWriterLeavesNothing) {
  write_text(path("x"), "old");
  EXPECT_THROW(write_file_atomically(path("x"),
                                     [](FileWriter& file) {
                                       file.write("half");
                                       throw std::runtime_error("no");
                                     }),
               std::runtime_error);
  {
    AtomicFolder abandoned(path("folder"));
    write_text(abandoned.file("a"), "text");
  }
  EXPECT_EQ(names(), std::set<std::string>{"x"});
  EXPECT_EQ(read_text(path("x")), "old");
}

TEST_F(Atomic, LeftoversOfRunningWritersStay) {
  const AtomicFolder running(path("folder"));
  write_file_atomically(path("x"), [&](FileWriter& file) {
    file.write("text");
    EXPECT_TRUE(remove_leftovers(folder_.string()).empty());
    EXPECT_EQ(names().size(), 2U);  // both in the making
  });
  EXPECT_EQ(read_text(path("x")), "text");
}

TEST_F(Atomic, LeftoversAreKnownByTheirNames) {
  for (const char* name : {".x.luna-part-12-0", ".a.b.luna-old-1-22"}) {
    EXPECT_TRUE(is_leftover(name)) << name;
  }
  for (const char* name :
       {"x", ".x", "x.luna-part-1-0", ".luna-part-1-0", ".x.luna-part-1",
        ".x.luna-part--0", ".x.luna-part-1-", ".x.luna-new-1-0",
        ".x.luna-part-1-0~", ".x.luna-part-1a-0", ""}) {
    EXPECT_FALSE(is_leftover(name)) << name;
  }
  write_text(path("x.luna-part-1-0"), "the user's own");
  EXPECT_TRUE(remove_leftovers(folder_.string()).empty());
  EXPECT_TRUE(remove_leftovers(path("none")).empty());
}

TEST_F(Atomic, FoldersAreNotFilesNorFilesFolders) {
  write_text(path("file"), "text");
  fs::create_directory(path("folder"));
  expect_error<c10::Error>([&] { AtomicFolder(path("file")); },
                           {path("file"), "Not a directory"});
  expect_error<c10::Error>([&] { write_text(path("folder"), "text"); },
                           {path("folder"), "Is a directory"});
  AtomicFolder slash(path("folder/"));  // replaces "folder"
  write_text(slash.file("a"), "text");
  slash.commit();
  EXPECT_EQ(read_text(path("folder/a")), "text");
  EXPECT_THROW(slash.commit(), c10::Error);
  remove_folder(path("folder"));
  remove_folder(path("folder"));
  EXPECT_EQ(names(), std::set<std::string>{"file"});
}

TEST_F(Atomic, DevicesAreWrittenTo) {
  write_text("/dev/null", "text");
  EXPECT_FALSE(fs::is_regular_file("/dev/null"));
}

TEST_F(Atomic, FaultsAreReadFromText) {
  const Fault fault = parse_fault("kill:rename:12");
  EXPECT_EQ(fault.action, Fault::Action::kKill);
  EXPECT_EQ(fault.point, "rename");
  EXPECT_EQ(fault.call, 12);
  EXPECT_EQ(parse_fault("fail:3").point, "");
  EXPECT_EQ(parse_fault("fail:3").call, 3);
  for (const char* bad : {"", "kill", "kill:", "kill:0", "kill:-1", "kill:x",
                          "die:1", "kill:1x", "3", "fail:write:", ":1"}) {
    SCOPED_TRACE(bad);
    expect_error<c10::ValueError>([&] { parse_fault(bad); }, {"LUNA_FAULT"});
  }
}

TEST_F(Atomic, ASecondLockIsRefusedWithTheHoldersId) {
  {
    const FileLock lock(path("lock"));
    expect_error<c10::Error>([&] { FileLock second(path("lock")); },
                             {path("lock"), std::to_string(getpid())});
    const pid_t child = fork();
    if (child == 0) {
      try {
        FileLock other(path("lock"));
      } catch (const c10::Error&) {
        _exit(7);
      }
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(WEXITSTATUS(status), 7);
  }
  const FileLock again(path("lock"));
  expect_error<c10::Error>([&] { FileLock nowhere(path("no/lock")); },
                           {path("no/lock"), "No such file"});
}

TEST_F(Atomic, ALockEndsWithItsProcess) {
  EXPECT_TRUE(killed({}, [&] {
    const FileLock lock(path("lock"));
    raise(SIGKILL);
  }));
  const FileLock lock(path("lock"));
}

TEST_F(Atomic, ALocksFileGoesWithIt) {
  { const FileLock lock(path("lock")); }
  EXPECT_FALSE(std::filesystem::exists(path("lock")));
  write_text(path("lock"), "12345\n");  // of a process that was killed
  { const FileLock lock(path("lock")); }
  EXPECT_FALSE(std::filesystem::exists(path("lock")));
}

TEST_F(Atomic, NeverTwoHoldALockThatComesAndGoes) {
  std::atomic<int> holders = 0, most = 0, taken = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      while (taken < 2000) {
        try {
          const FileLock lock(path("lock"));
          const int now = ++holders;
          if (now > most) most = now;
          ++taken;
          --holders;
        } catch (const c10::Error&) {
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(most, 1);
}

TEST_F(Atomic, MapsOfEmptyFilesAreEmpty) {
  write_text(path("x"), "");
  const auto map = MemoryMap::open(path("x"));
  EXPECT_EQ(map->size(), 0U);
  EXPECT_EQ(map->data(), nullptr);
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  expect_error<c10::Error>([&] { MemoryMap::open(path("pipe")); },
                           {path("pipe"), "regular file"});
}

}  // namespace
}  // namespace luna::io
