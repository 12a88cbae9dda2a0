#include "snug/report/curve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace snug::report {
namespace {

using testing::HasSubstr;
using testing::Not;

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(RenderSvg, DrawsEachPointWithItsTitleAndEachSeriesInTheLegend) {
  const Curve curve{"steps",
                    "peak",
                    "time",
                    {{"measured", false, {{100, 1.2, "a"}, {200, 1.0, "b"}}}, {"predicted", true, {{100, 1.1, "c"}}}}};
  const std::string svg = render_svg(curve);
  EXPECT_EQ(svg.rfind("<svg", 0), 0U);
  EXPECT_THAT(svg, HasSubstr("</svg>"));
  EXPECT_EQ(count(svg, "<circle"), 3);
  EXPECT_EQ(count(svg, "<polyline"), 2);
  EXPECT_THAT(svg, AllOf(HasSubstr(">measured<"), HasSubstr(">predicted<"), HasSubstr("<title>c</title>")));
  EXPECT_THAT(svg, HasSubstr("stroke-dasharray"));
}

// The picture is 760 by 440, and its axes lie 70 from the left, 20 from the right, 44 from above and 60 from below.
// Both ranges are whole ticks, so that the corners of the data are the corners of the axes.
TEST(RenderSvg, PutsEachPointWhereTheAxesSay) {
  const Curve curve{
      "", "x", "y", {{"s", false, {{0, 0, "low"}, {10, 6, "high"}, {5, 3, "middle"}, {2.5, 1.5, "quarter"}}}}};
  const std::string svg = render_svg(curve);
  const auto circle = [](const std::string& x, const std::string& y, const std::string& title) {
    return "<circle cx=\"" + x + "\" cy=\"" + y + "\" r=\"4\" fill=\"#1f6feb\"><title>" + title;
  };
  EXPECT_THAT(svg, HasSubstr(circle("70.0", "380.0", "low")));
  EXPECT_THAT(svg, HasSubstr(circle("740.0", "44.0", "high")));
  EXPECT_THAT(svg, HasSubstr(circle("405.0", "212.0", "middle")));
  EXPECT_THAT(svg, HasSubstr(circle("237.5", "296.0", "quarter")));
  EXPECT_THAT(svg, HasSubstr("<polyline points=\"70.0,380.0 740.0,44.0 405.0,212.0 237.5,296.0 \""));
}

TEST(RenderSvg, PutsEachTickBesideItsValue) {
  const std::string svg = render_svg({"", "x", "y", {{"s", false, {{0, 0, ""}, {10, 6, ""}}}}});
  for (int i = 0; i <= 5; ++i) {
    const std::string at = std::to_string(70 + 134 * i) + ".0", value = std::to_string(2 * i);
    EXPECT_THAT(svg, HasSubstr("<text x=\"" + at + "\" y=\"398\" text-anchor=\"middle\">" + value + "</text>"));
  }
  for (int i = 0; i <= 6; ++i) {
    const std::string at = std::to_string(384 - 56 * i) + ".0", value = std::to_string(i);
    EXPECT_THAT(svg, HasSubstr("<text x=\"62\" y=\"" + at + "\" text-anchor=\"end\">" + value + "</text>"));
  }
}

TEST(RenderSvg, EscapesTextAndLeavesOutWhatIsNotFinite) {
  const double infinite = std::numeric_limits<double>::infinity();
  const Curve curve{
      "a < b & \"c\"", "x", "y", {{"<s>", false, {{1, 2, "<&>"}, {infinite, 1, "far"}, {1, -infinite, "low"}}}}};
  const std::string svg = render_svg(curve);
  EXPECT_EQ(count(svg, "<circle"), 1);
  EXPECT_THAT(svg,
              AllOf(HasSubstr("a &lt; b &amp; &quot;c&quot;"), HasSubstr("&lt;s&gt;"), HasSubstr("&lt;&amp;&gt;")));
  EXPECT_THAT(svg, AllOf(Not(HasSubstr("inf")), Not(HasSubstr("nan")), Not(HasSubstr("far"))));
}

TEST(RenderSvg, DrawsAnEmptyCurveAndASinglePoint) {
  EXPECT_THAT(render_svg({"nothing", "x", "y", {}}), Not(HasSubstr("nan")));
  const std::string one = render_svg({"one", "x", "y", {{"s", false, {{5, 5, "p"}}}}});
  EXPECT_EQ(count(one, "<circle"), 1);
  EXPECT_THAT(one, Not(HasSubstr("nan")));
}

}  // namespace
}  // namespace snug::report
