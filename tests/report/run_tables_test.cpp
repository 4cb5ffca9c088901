#include "luna/report/run_report.h"

#include <gtest/gtest.h>

#include "report/run_folders.h"

namespace luna::report::testing {
namespace {

TEST(ResultsTable, DifferenceIsOursMinusThePapers) {
  const RunReport report = report_of({recipe("universal", 0.65)});
  const std::string text = results_table(report).text();
  EXPECT_NE(text.find("65.00"), std::string::npos) << text;
  EXPECT_NE(text.find("64.32"), std::string::npos) << text;
  EXPECT_NE(text.find("+0.68"), std::string::npos) << text;
  const Json json = Json::parse(report_json(report));
  const Json& published = json["results"][0]["published"];
  ASSERT_EQ(published.size(), 1u);
  EXPECT_NEAR(published[0]["difference_points"].get<double>(), 0.68, 1e-9);
}

TEST(ResultsTable, RowsOfNoPaperStandInATableOfTheirOwn) {
  RunRecipe line = recipe("universal", 0.49);
  line.model["embedding"] = "line";
  RunRecipe stand_in = recipe("softmax", 0.51);
  stand_in.task = "retrieval-imdb";
  const RunReport report =
      report_of({recipe("universal", 0.65), line, stand_in});
  const std::string beside = results_table(report).text();
  const std::string others = other_results_table(report).text();
  for (const auto& [accuracy, published] :
       {std::pair("65.00", true), {"49.00", false}, {"51.00", false}}) {
    EXPECT_EQ(beside.find(accuracy) != std::string::npos, published) << beside;
    EXPECT_EQ(others.find(accuracy) == std::string::npos, published) << others;
  }
}

TEST(ResultsTable, HasTheRowOfTheRecipesOwnPaper) {
  RunRecipe behind = recipe("softmax", 0.45);
  behind.paper = "nested";
  RunRecipe linear = recipe("linear", 0.42);  // only the nested paper has it
  const auto rows = [](const RunRecipe& r) {
    return results_table(report_of({r})).text();
  };
  EXPECT_NE(rows(recipe("softmax", 0.4)).find("39.14"), std::string::npos);
  EXPECT_EQ(rows(recipe("softmax", 0.4)).find("42.94"), std::string::npos);
  EXPECT_NE(rows(behind).find("42.94"), std::string::npos);
  EXPECT_EQ(rows(behind).find("39.14"), std::string::npos);
  EXPECT_NE(rows(linear).find("42.34"), std::string::npos);
}

TEST(ResultsTable, SaysWhatWasNotTested) {
  const TemporaryFolder folder;
  const std::string path = write_run(folder / "a", recipe("universal", 0.5));
  Json summary = Json::parse(io::read_text(path + "/summary.json"));
  summary.erase("test_accuracy");  // cut off: the best validation is .4
  io::write_text(path + "/summary.json", summary.dump());
  std::string lines = io::read_text(path + "/metrics.jsonl");
  io::write_text(path + "/metrics.jsonl",
                 lines.substr(0, lines.find("{\"kind\":\"test\"")));
  const std::string text = results_table(make_report({read_run(path)})).text();
  EXPECT_NE(text.find("40.00"), std::string::npos) << text;
  EXPECT_NE(text.find("1, validation"), std::string::npos) << text;
}

TEST(ResultsTable, SaysWhatRunsCost) {
  const std::string text =
      results_table(report_of({recipe("universal", 0.65)})).text();
  for (const char* cost : {"10.0", "954 MiB", "12,345"}) {
    EXPECT_NE(text.find(cost), std::string::npos) << cost << "\n" << text;
  }
}

TEST(SuiteTable, SumsMinutesAndLeavesRetrievalOutOfTheMean) {
  std::vector<RunRecipe> recipes;
  for (const auto& [task, accuracy] : {std::pair("listops", 0.3),
                                       {"text", 0.6},
                                       {"image", 0.4},
                                       {"pathfinder", 0.7},
                                       {"retrieval-imdb", 0.9}}) {
    recipes.push_back(recipe("universal", accuracy));
    recipes.back().task = task;
  }
  recipes.push_back(recipe("universal", 0.3, 2));
  recipes.back().task = "listops";
  recipes.back().seconds = 1200;             // beside others
  recipes.push_back(recipe("linear", 0.5));  // on one task alone
  RunRecipe other = recipe("universal", 0.1);
  other.paper = "nested";
  recipes.push_back(other);  // likewise
  const std::string text = suite_table(report_of(recipes)).text();
  EXPECT_NE(text.find("50.00"), std::string::npos) << text;  // not 58.00
  EXPECT_NE(text.find("90.00"), std::string::npos) << text;
  EXPECT_NE(text.find("55.0"), std::string::npos) << text;  // with means
  EXPECT_EQ(text.find("linear"), std::string::npos) << text;
  EXPECT_EQ(text.find("nested"), std::string::npos) << text;
}

TEST(SuiteTable, AllStepsAreThoseOfTheRecipeAtTheFastestSeedsRate) {
  RunRecipe image = recipe("universal", 0.4);
  image.planned = 50000;
  image.steps = 100;  // in 10 minutes: 50,000 take 5,000
  RunRecipe slower = image;
  slower.seed = 2;
  slower.seconds = 1200;
  RunRecipe text = image;
  text.task = "text";
  text.planned = 25000;  // of the recipe's 50,000
  const auto table = [](const std::vector<RunRecipe>& recipes) {
    return suite_table(report_of(recipes)).text();
  };
  const std::string paper = table({image, slower, text});
  EXPECT_NE(paper.find("10000.0"), std::string::npos) << paper;
}

TEST(SuiteTable, NamesOptionsWhereMechanismsShareATitle) {
  std::vector<RunRecipe> recipes;
  for (const char* task : {"listops", "text"}) {
    for (const int projections : {8, 16}) {
      recipes.push_back(recipe("universal", 0.5));
      recipes.back().task = task;
      recipes.back().model["attention_options"] = {{"M", projections}};
    }
    recipes.push_back(recipe("rff", 0.5));
    recipes.back().task = task;
    recipes.back().model["attention_options"] = {{"features", 16}};
  }
  // The same by defaults that are written out.
  recipes[0].model["attention_options"] = {{"L", 8}};
  const std::string text = suite_table(report_of(recipes)).text();
  const std::size_t named = text.find("universal (M 16)");
  ASSERT_NE(named, std::string::npos) << text;
  EXPECT_EQ(text.find("universal (M 16)", named + 1), std::string::npos)
      << text;
  EXPECT_EQ(text.find("M 8"), std::string::npos) << text;
  EXPECT_EQ(text.find("L 8"), std::string::npos) << text;
  EXPECT_EQ(text.find("features"), std::string::npos) << text;
}

TEST(SuiteTable, PooledMemoryIsALineOfItsOwn) {
  std::vector<RunRecipe> recipes;
  for (const char* task : {"listops", "text"}) {
    for (const char* pooling : {"memory", "cls"}) {
      recipes.push_back(
          recipe("nested", std::string(pooling) == "cls" ? 0.4 : 0.6));
      recipes.back().task = task;
      recipes.back().paper = "nested";
      recipes.back().model["pooling"] = pooling;
      recipes.back().model["attention_options"] = {{"tied", false}};
    }
  }
  const std::string text = suite_table(report_of(recipes)).text();
  const std::size_t pooled = text.find("memory pooled)");
  ASSERT_NE(pooled, std::string::npos) << text;
  EXPECT_NE(text.find("60.00", pooled), std::string::npos) << text;
  EXPECT_NE(text.find("40.00"), std::string::npos) << text;

  // Of one task alone it is no line, and nobody is named by how he differs.
  std::erase_if(recipes, [](const RunRecipe& r) {
    return r.task == "text" && r.model["pooling"] == "memory";
  });
  const std::string alone = suite_table(report_of(recipes)).text();
  EXPECT_EQ(alone.find('('), std::string::npos) << alone;
  EXPECT_EQ(alone.find("60.00"), std::string::npos) << alone;
}

TEST(SuiteTable, IsOfThePapersRecipesEachInLinesOfItsOwn) {
  std::vector<RunRecipe> recipes;
  for (const char* task : {"listops", "text"}) {
    for (const char* paper : {"universal", "nested"}) {
      recipes.push_back(
          recipe("softmax", std::string(paper) == "nested" ? 0.4 : 0.6));
      recipes.back().task = task;
      recipes.back().paper = paper;
    }
  }
  const std::string both = suite_table(report_of(recipes)).text();
  EXPECT_NE(both.find("universal"), std::string::npos) << both;
  EXPECT_NE(both.find("60.00"), std::string::npos) << both;
  EXPECT_NE(both.find("nested"), std::string::npos) << both;
  EXPECT_NE(both.find("40.00"), std::string::npos) << both;
  for (RunRecipe& r : recipes) r.model["dropout"] = 0.2;  // nobody's
  EXPECT_TRUE(suite_table(report_of(recipes)).empty());
}

TEST(SuiteTable, NamesWhatTellsALineFromOneThatIsNotShown) {
  std::vector<RunRecipe> recipes;
  for (const char* task : {"listops", "text"}) {
    recipes.push_back(recipe("universal", 0.5));
    recipes.back().task = task;
    recipes.back().model["attention_options"] = {{"M", 16}, {"L", 4}};
  }
  recipes.push_back(recipe("universal", 0.5));
  recipes.back().model["attention_options"] = {{"L", 4}};
  const std::string text = suite_table(report_of(recipes)).text();
  EXPECT_NE(text.find("universal (M 16)"), std::string::npos) << text;
  EXPECT_EQ(text.find("L 4"), std::string::npos) << text;
}

TEST(SuiteTable, TakesAMechanismOfALaterLuna) {
  std::vector<RunRecipe> recipes;
  for (const char* task : {"listops", "text"}) {
    recipes.push_back(recipe("performer", 0.5));
    recipes.back().task = task;
    recipes.back().model["attention_options"] = {{"features", 16}};
  }
  EXPECT_NE(suite_table(report_of(recipes)).text().find("50.00"),
            std::string::npos);
}

TEST(RunsTable, SaysHowManyRunsSharedTheMachine) {
  RunRecipe shared = recipe("universal", 0.5);
  shared.side_by_side = 37;
  const RunReport report = report_of({shared, recipe("softmax", 0.4)});
  const std::string text = runs_table(report).text();
  EXPECT_NE(text.find(" 37 "), std::string::npos) << text;
  const Json runs = Json::parse(report_json(report))["runs"];
  const auto of = [&](const char* attention) {
    for (const Json& run : runs) {
      if (run["attention"] == attention) return run["side_by_side"];
    }
    return Json("no such run");
  };
  EXPECT_EQ(of("universal"), 37);
  EXPECT_EQ(of("softmax"), nullptr);  // not recorded
}

RunRecipe translator(const std::string& attention, double bleu,
                     const std::string& data, int64_t seed = 1) {
  RunRecipe r = recipe(attention, bleu / 100, seed);
  r.task = "translation";
  r.data = data;
  return r;
}

TEST(TranslationTable, DataIsNoSeed) {
  const RunReport report = report_of({translator("softmax", 38, "multi30k", 1),
                                      translator("softmax", 40, "multi30k", 2),
                                      translator("universal", 38.5, "multi30k"),
                                      translator("softmax", 20, "all")});
  ASSERT_EQ(report.groups.size(), 3u);
  ASSERT_EQ(report.comparisons.size(), 1u);
  EXPECT_EQ(report.comparisons[0].title,
            "translation on multi30k, n = 1,024, batch 32");
  EXPECT_TRUE(results_table(report).empty());
  EXPECT_TRUE(other_results_table(report).empty());
  const std::string text = translation_table(report).text();
  EXPECT_NE(text.find("39.00 ± 1.41"), std::string::npos) << text;
  EXPECT_NE(text.find("38.50"), std::string::npos) << text;
  EXPECT_NE(text.find("−0.50"), std::string::npos) << text;
  EXPECT_EQ(report.groups[0].title, "softmax on all");
  EXPECT_EQ(report.groups[0].colour, 0);
  EXPECT_EQ(comparison_bars(report, report.comparisons[0]).bars.size(), 2u);
  EXPECT_EQ(trade_off(report, report.comparisons[0]).y.label, "test BLEU");
  const std::string runs = runs_table(report).text();
  EXPECT_NE(runs.find("test, BLEU"), std::string::npos) << runs;
}

TEST(TranslationTable, HasAColumnForEachTestInScores) {
  const TemporaryFolder folder;
  const std::string run =
      write_run(folder / "run", translator("softmax", 38, "multi30k"));
  fs::create_directories(run + "/scores");
  io::write_text(run + "/scores/test_2017.json",
                 R"({"bleu": {"score": 31.25}})");
  io::write_text(run + "/scores/torn.json", R"({"bleu": )");
  const RunReport report = make_report({read_run(run)});
  const std::string text = translation_table(report).text();
  EXPECT_NE(text.find("test_2017, BLEU"), std::string::npos) << text;
  EXPECT_NE(text.find("31.25"), std::string::npos) << text;
  const auto notes = run_notes(report);
  EXPECT_NE(notes.at(0).find("scores/torn.json left out"), std::string::npos)
      << notes[0];
}

}  // namespace
}  // namespace luna::report::testing
