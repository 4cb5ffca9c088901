// Tasks that are generated, and the table of all.

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>
#include <string>

#include "data/readers.h"
#include "luna/io/text_file.h"

namespace luna::data {
namespace {

TEST(Generated, SplitsAreCutFromOneSet) {
  const LoadOptions options{
      .samples = 30,
      .seed = 5,
      .settings = {{"min_length", int64_t{10}}, {"max_length", int64_t{40}}}};
  const Splits splits = load_task("listops", options);
  std::set<std::string> distinct;
  for (const auto& split : splits.all()) {
    EXPECT_EQ(split->size(), 30);
    EXPECT_LT(split->longest(), 40);
    for (int64_t i = 0; i < split->size(); ++i) {
      distinct.insert(text_of((*split)[i].ids));
    }
  }
  EXPECT_EQ(distinct.size(), 90u);
  EXPECT_EQ(content(load_task("listops", options)), content(splits));
}

TEST(Generated, PresetsAndSettingsOfPathfinder) {
  const Splits large = load_task(
      "pathfinder",
      {.samples = 2, .settings = {{"preset", std::string("64-easy")}}});
  EXPECT_EQ(large.train->info().height, 64);
  EXPECT_EQ(large.test->longest(), 64 * 64);
  const Splits usual = load_task("pathfinder", {.samples = 2});
  EXPECT_EQ(usual.train->info().width, 32);
  const Splits changed =
      load_task("pathfinder",
                {.samples = 2, .settings = {{"contour_length", int64_t{6}}}});
  EXPECT_NE(content(changed), content(usual));
}

TEST(Generated, RefusesWhatItDoesNotRead) {
  EXPECT_THROW(
      load_task("pathfinder",
                {.samples = 2, .settings = {{"preset", std::string("31")}}}),
      c10::ValueError);
  EXPECT_THROW(load_task("pathfinder", {.folder = "."}), c10::ValueError);
  EXPECT_THROW(load_task("needles", {.folder = "."}), c10::ValueError);
  EXPECT_THROW(
      load_task("needles", {.samples = 2, .settings = {{"depth", int64_t{3}}}}),
      c10::ValueError);
  EXPECT_THROW(load_task("needles", {.samples = 2, .max_length = 3}),
               c10::ValueError);
  EXPECT_THROW(load_task("listops", {.samples = -1}), c10::ValueError);
}

TEST(Generated, ProgressMayStopIt) {
  struct Stop {};
  EXPECT_THROW(
      load_task("needles",
                {.samples = 100,
                 .progress = [](double, const auto&) { throw Stop(); }}),
      Stop);
}

TEST(Tasks, AreWellFormed) {
  std::set<std::string> names;
  for (const Task& task : tasks()) {
    EXPECT_TRUE(names.insert(task.name).second) << task.name;
    EXPECT_EQ(task.info.task, task.name);
    EXPECT_EQ(std::ssize(task.classes), task.info.classes) << task.name;
    EXPECT_FALSE(task.what.empty() || task.how.empty()) << task.name;
    EXPECT_EQ(&find_task(task.name), &task);
  }
}

TEST(Tasks, UnknownOnesListTheKnown) {
  try {
    find_task("imgae");
    FAIL();
  } catch (const c10::ValueError& error) {
    const std::string message = error.what_without_backtrace();
    EXPECT_NE(message.find("retrieval-imdb"), std::string::npos) << message;
    EXPECT_NE(message.find("nearest: image"), std::string::npos) << message;
  }
}

TEST(Tasks, AreAllInTheDocumentation) {
  const char* root = std::getenv("LUNA_SOURCE_DIR");
  ASSERT_NE(root, nullptr);
  const std::string page = io::read_text(std::string(root) + "/docs/data.md");
  for (const Task& task : tasks()) {
    EXPECT_NE(page.find(fmt::format("| `{}` | {} |", task.name, task.what)),
              std::string::npos)
        << task.name << ": " << task.what;
  }
}

}  // namespace
}  // namespace luna::data
