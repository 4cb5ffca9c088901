#include "luna/report/run_report.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "report/run_folders.h"

namespace luna::report::testing {
namespace {

TEST(Statistic, MeanAndDeviationOfTheSample) {
  const Statistic s = *statistic({2, 4, 9});
  EXPECT_DOUBLE_EQ(s.mean, 5);
  EXPECT_DOUBLE_EQ(*s.sd, std::sqrt((9 + 1 + 16) / 2.0));
  EXPECT_FALSE(statistic({3})->sd);
  EXPECT_FALSE(statistic({}));
}

TEST(RunReport, SeedsOfOneConfigAreOneGroup) {
  const RunReport report =
      report_of({recipe("universal", 0.60, 1), recipe("universal", 0.64, 2),
                 recipe("softmax", 0.40)});
  ASSERT_EQ(report.groups.size(), 2u);
  EXPECT_EQ(report.groups[0].title, "softmax");
  EXPECT_EQ(report.groups[0].colour, 0);
  EXPECT_EQ(report.groups[1].runs.size(), 2u);
  EXPECT_DOUBLE_EQ(report.groups[1].accuracy->mean, 0.62);
  EXPECT_NEAR(*report.groups[1].accuracy->sd, 0.02 * std::sqrt(2.0), 1e-12);
  EXPECT_TRUE(report.groups[1].tested);
}

TEST(RunReport, PatienceMakesNoOtherGroup) {
  RunRecipe ended = recipe("universal", 0.64, 2);
  ended.patience = 8;
  ended.steps = 300;
  const RunReport report = report_of({recipe("universal", 0.60, 1), ended});
  ASSERT_EQ(report.groups.size(), 1u);
  EXPECT_EQ(report.groups[0].title, "universal");
  EXPECT_EQ(report.groups[0].runs.size(), 2u);
  EXPECT_EQ(report.runs[1].notes.at(0), "ended early: 300 of 400 steps");
}

TEST(RunReport, TheOrderOfSumsMakesNoOtherGroup) {
  RunRecipe fast = recipe("softmax", 0.64, 2);
  fast.repeatable = false;
  const RunReport report = report_of({recipe("softmax", 0.60, 1), fast});
  ASSERT_EQ(report.groups.size(), 1u);
  EXPECT_EQ(report.groups[0].title, "softmax");
}

TEST(RunReport, OtherConfigsAreOtherGroupsAndSayWhy) {
  RunRecipe wide = recipe("universal", 0.6);
  wide.model["width"] = 128;
  const RunReport report = report_of({recipe("universal", 0.5), wide});
  ASSERT_EQ(report.groups.size(), 2u);
  EXPECT_EQ(report.groups[0].title, "universal");  // width 64 is the default
  EXPECT_EQ(report.groups[1].title, "universal (width 128)");
  EXPECT_NE(report.groups[0].colour, report.groups[1].colour);
}

TEST(RunReport, ManyConfigsAreNamedByWhatIsUnusual) {
  const auto with = [](Json options, bool line = false) {
    RunRecipe r = recipe("universal", 0.5);
    r.model["attention_options"] = std::move(options);
    if (line) r.model["embedding"] = "line";
    return r;
  };
  RunRecipe second = with(Json::object());
  second.seed = 2;
  const RunReport report =
      report_of({with({{"M", 8}, {"L", 8}}), second, with({{"M", 16}}),
                 with({{"M", 64}, {"L", 1}}),
                 with({{"M", 64}, {"L", 1}, {"start", "softmax"}}, true)});
  ASSERT_EQ(report.groups.size(), 4u);  // the first two are one config
  std::set<std::string> titles;
  for (const RunGroup& group : report.groups) titles.insert(group.title);
  // Two runs of M = 8, the default, and two of M = 64.
  EXPECT_EQ(titles,
            (std::set<std::string>{
                "universal", "universal (M 16)", "universal (L 1, M 64)",
                "universal (L 1, M 64, start softmax, embedding line)"}));
}

TEST(RunReport, ModelsAreToldFromTheDefaultHoweverFewHaveIt) {
  RunRecipe black = recipe("universal", 0.5);
  black.model["black"] = "padding";
  RunRecipe again = black;
  again.seed = 2;
  RunRecipe both = black;
  both.model["local"] = 5;
  const RunReport report =
      report_of({black, again, both, recipe("universal", 0.4)});
  std::set<std::string> titles;
  for (const RunGroup& group : report.groups) titles.insert(group.title);
  EXPECT_EQ(titles,
            (std::set<std::string>{"universal", "universal (black padding)",
                                   "universal (black padding, local 5)"}));
}

TEST(RunReport, OtherModelsThanThePapersAreNotSetBesideThem) {
  RunRecipe line = recipe("universal", 0.5);
  line.model["embedding"] = "line";
  RunRecipe black = recipe("universal", 0.5);
  black.model["black"] = "padding";
  RunRecipe local = recipe("universal", 0.5);
  local.model["local"] = 3;
  const RunReport report =
      report_of({recipe("universal", 0.4), line, black, local});
  ASSERT_EQ(report.groups.size(), 4u);
  for (const RunGroup& group : report.groups) {
    const bool plain = group.accuracy->mean == 0.4;
    EXPECT_EQ(group.published.empty(), !plain) << group.title;
  }
}

TEST(RunReport, TheOtherPapersRecipeIsSaidInTwoWords) {
  RunRecipe behind = recipe("softmax", 0.4);
  behind.model["norm"] = "post";
  behind.model["width"] = 512;
  behind.model["layers"] = 1;
  RunRecipe wide = behind;
  wide.model["width"] = 1024;
  const RunReport report = report_of({recipe("softmax", 0.5), behind, wide});
  std::set<std::string> titles;
  for (const RunGroup& group : report.groups) titles.insert(group.title);
  EXPECT_EQ(titles, (std::set<std::string>{
                        "softmax", "softmax, norms behind (width 512)",
                        "softmax, norms behind (width 1024)"}));
}

TEST(RunReport, ComparesTheSameWorkOnly) {
  RunRecipe softmax = recipe("softmax", 0.4),
            universal = recipe("universal", 0.6);
  softmax.steps_per_s = 2;
  softmax.peak_memory = 4e9;
  universal.steps_per_s = 5;
  universal.peak_memory = 1e9;
  RunRecipe longer = universal;
  longer.length = 4096;
  longer.seed = 2;
  RunRecipe wider = universal;
  wider.model["width"] = 128;
  const RunReport report = report_of({softmax, universal, wider});
  ASSERT_EQ(report.comparisons.size(), 1u);
  const Comparison& comparison = report.comparisons[0];
  ASSERT_EQ(comparison.groups.size(), 2u);
  EXPECT_EQ(comparison.title, "image, n = 1,024, batch 64");
  EXPECT_DOUBLE_EQ(comparison.groups[1].speed, 2.5);
  EXPECT_DOUBLE_EQ(*comparison.groups[1].memory, 0.25);
  EXPECT_TRUE(report_of({softmax, longer}).comparisons.empty());
  EXPECT_EQ(trade_off(report, comparison).bubbles.size(), 2u);
  EXPECT_EQ(comparison_bars(report, comparison).bars.size(), 2u);
}

TEST(RunReport, ReachedByTheMeanOrShortOfItByTheDeviation) {
  // The paper has 64.32.
  const auto is_reached = [](std::vector<double> accuracies) {
    std::vector<RunRecipe> recipes;
    for (const double accuracy : accuracies) {
      recipes.push_back(recipe("universal", accuracy, recipes.size() + 1));
      recipes.back().planned = 50000;
    }
    const RunReport report = report_of(recipes);
    const RunGroup& group = report.groups.at(0);
    return reached(report, group, *group.published.at(0));
  };
  EXPECT_TRUE(*is_reached({.604, .624, .644}));   // 62.4 and 2
  EXPECT_FALSE(*is_reached({.602, .622, .642}));  // 62.2 and 2
  EXPECT_FALSE(is_reached({.61, .65}));           // too few seeds to say
}

TEST(RunReport, OnlyThePapersWholeRecipeReachesItsRow) {
  const auto three_of = [](const RunRecipe& r) {
    std::vector<RunRecipe> recipes(3, r);
    for (int seed = 1; seed <= 3; ++seed) recipes[seed - 1].seed = seed;
    return report_of(recipes);
  };
  const auto is_reached = [&](const RunRecipe& r) {
    const RunReport report = three_of(r);
    const RunGroup& group = report.groups.at(0);
    return reached(report, group, *group.published.at(0));
  };
  RunRecipe r = recipe("softmax", 0.5);
  r.planned = 50000;
  EXPECT_EQ(is_reached(r), true);  // the universal paper's, 39.14
  for (const int64_t other : {49999, 50001}) {
    r.planned = other;
    EXPECT_EQ(is_reached(r), std::nullopt) << other;
  }
  r.paper = "nested";
  r.planned = 35000;
  EXPECT_EQ(is_reached(r), true);  // 42.94
  r.planned = 25000;
  EXPECT_EQ(is_reached(r), std::nullopt);
  // The nested paper has no harness with norms in front.
  r = recipe("linear", 0.5);
  r.planned = 50000;
  EXPECT_EQ(is_reached(r), std::nullopt);
  // Nobody's recipe stands beside nobody.
  for (const Json& change :
       {Json{{"dropout", 0.2}}, Json{{"activation_dropout", 0.1}},
        Json{{"positions", "sinusoidal"}}, Json{{"norm", "post"}}}) {
    r = recipe("softmax", 0.5);
    r.model = change;
    EXPECT_TRUE(three_of(r).groups.at(0).published.empty()) << change;
  }
}

TEST(ReportPage, SaysWhichRunIsNotFinished) {
  const TemporaryFolder folder;
  const std::string path = write_run(folder / "a", recipe("linear", 0.5));
  fs::remove(path + "/summary.json");
  fs::remove(path + "/metrics.jsonl");
  fs::create_directories(path + "/checkpoints");
  const RunReport report = make_report({read_run(path)});
  const Page page = report_page(report);
  EXPECT_NE(page.html().find("One run is not finished"), std::string::npos);
  EXPECT_NE(page.markdown().find("no metrics.jsonl"), std::string::npos);
}

TEST(ReportPage, NamesAFewCommitsAndCountsMany) {
  std::vector<RunRecipe> runs;
  const auto text = [&] { return report_page(report_of(runs)).markdown(); };
  const auto add = [&](const std::string& commit) {
    runs.push_back(recipe("softmax", 0.5, std::ssize(runs) + 1));
    runs.back().commit = commit;
  };
  add("abc1");
  EXPECT_NE(text().find("luna 0.1.0; commit abc1."), std::string::npos);
  for (const char* commit : {"abc1", "abc2", "abc3"}) add(commit);
  EXPECT_NE(text().find("; commits abc1, abc2, abc3."), std::string::npos);
  add("abc4");
  EXPECT_NE(text().find("; 4 commits, each run's in its summary.json."),
            std::string::npos);
  EXPECT_EQ(text().find("abc1"), std::string::npos);
}

TEST(ReportPage, MarksWrongSamplesByMoreThanColour) {
  report::Run run;
  run.name = run.task = run.title = "a";
  run.classes = {"cat", "dog"};
  run.predictions = {
      {"text", "x <y>", "", "", {}, 0, 0, 1, 0, 0, {0.9, 0.1}},
      {"picture", "", "", "", {0, 255}, 1, 2, 1, 0, 1, {0.2, 0.8}},
      {"translation", "a dog", "ein Hund", "ein Hut", {}, 0, 0, 1, 0, 1, {}}};
  const std::string html = report_page(make_report({run})).html();
  EXPECT_NE(html.find("✓ cat, 90 %"), std::string::npos);
  EXPECT_NE(html.find("✗ dog, 80 %"), std::string::npos);
  EXPECT_NE(html.find("is cat"), std::string::npos);
  EXPECT_NE(html.find("x &lt;y&gt;"), std::string::npos);
  EXPECT_NE(html.find("✗ ein Hut"), std::string::npos);
  EXPECT_NE(html.find("is ein Hund"), std::string::npos);
  EXPECT_NE(html.find("src=\"data:image/png;base64,iVBOR"), std::string::npos);
}

}  // namespace
}  // namespace luna::report::testing
